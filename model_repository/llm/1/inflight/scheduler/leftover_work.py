"""Leftover requests: they are computed with what the others leave of a step."""

from collections.abc import Sequence

from inflight.scheduler.admitter import Admitter
from inflight.scheduler.batching import Batching
from inflight.scheduler.plan import ScheduledRequest
from inflight.scheduler.policies.policy import LeftoverPolicy
from inflight.scheduler.prefill_budget import PrefillAllowance
from inflight.scheduler.prompt_chunks import PromptChunks
from inflight.scheduler.running_set import RunningSet
from inflight.scheduler.step_limit import StepLimit
from inflight.speculation.speculator import NoSpeculation


class LeftoverWork:
    """Plans the leftover requests of a step. The policy says what they get."""

    def __init__(
        self,
        policy: LeftoverPolicy,
        batching: Batching,
        running: RunningSet,
        limit: StepLimit,
        admitter: Admitter,
        speculator: NoSpeculation,
    ) -> None:
        self._policy = policy
        self._batching = batching
        self._running = running
        self._limit = limit
        self._admitter = admitter
        self._speculator = speculator

    def reserved(self, now: float, tokens: int) -> int:
        """Return how many of a step's `tokens` leftover requests have before the prompts of others.

        At most half of them, unless the rest of an image is longer, which cannot be cut.
        """
        leftover = self._running.ranked(leftover=True)
        request = self._batching.next(now)
        if request is not None and request.is_leftover:
            leftover.append(request)
        reserved = self._policy.reserved(leftover)
        if not reserved:
            return 0
        images = [r.images.next_end(r.num_computed) - r.num_computed for r in leftover if r.images is not None]
        return max(min(reserved, tokens // 2), min(max(images, default=0), tokens))

    def schedule(
        self, others: Sequence[ScheduledRequest], prompts: PromptChunks, allowance: PrefillAllowance, now: float
    ) -> list[ScheduledRequest]:
        """Schedule leftover requests beside the others of a step, whose `allowance` the tokens are taken from.

        `prompts` are those of the others that are not decodes. Decodes come first, by turn.
        """
        room = self._policy.allowance(others, self._limit.tokens - sum([each.num_tokens for each in others]))
        decodes = []
        for each in sorted(self._running.decodes(leftover=True), key=lambda decode: self._policy.turn(decode.request)):
            if room.take_whole(each.first, each.num_tokens):
                decodes.append(each)
        unfinished = sorted(self._running.unfinished(leftover=True), key=self._policy.turn)
        chunks = PromptChunks(room, prompts.limits, unfinished, prompts.scheduled, is_alone=not (others or decodes))
        chunks.add(unfinished)
        self._admitter.admit(chunks, now, leftover=True)
        scheduled = decodes + chunks.scheduled
        allowance.take(0, sum([each.num_tokens for each in scheduled]))
        return scheduled if others else self._speculator.with_drafts(scheduled, room)
