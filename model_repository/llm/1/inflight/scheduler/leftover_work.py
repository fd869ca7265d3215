"""Leftover requests: they are computed with what the others leave of a step."""

from collections.abc import Sequence

from inflight.request import Request
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
        *,
        longest: int,
    ) -> None:
        """`longest` is the maximum number of tokens of one prompt in a step."""
        self._longest = longest
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
        images = {
            request: _next_image(request, request.num_computed) for request in self._running.ranked(leftover=True)
        }
        request = self._batching.next(now)
        if request is not None and request.is_leftover:
            known = self._admitter.num_known_if_admitted(request)
            if known is not None:
                images[request] = _next_image(request, known)
        # While decodes leave no room for an image, its request can use nothing.
        images = {request: count for request, count in images.items() if count <= tokens}
        reserved = min(self._policy.reserved(images), tokens // 2)
        behind = [count for request, count in images.items() if count and self._policy.reserved([request])]
        return max([reserved, *behind])

    def schedule(
        self, others: Sequence[ScheduledRequest], prompts: PromptChunks, allowance: PrefillAllowance, now: float
    ) -> list[ScheduledRequest]:
        """Schedule leftover requests beside the others of a step, whose `allowance` the tokens are taken from.

        `prompts` are those of the others that are not decodes. Decodes come first, by turn.
        """
        room = self._policy.allowance(others, self._limit.tokens - sum([each.num_tokens for each in others]))
        decodes = []
        for each in sorted(self._running.decodes(leftover=True), key=lambda decode: self._policy.turn(decode.request)):
            # What a grammar has forced may be too long for any step beside the targets.
            if fits := room.fits(each.first, each.num_tokens):
                room.take(each.first, fits)
                decodes.append(each if fits == each.num_tokens else ScheduledRequest.next_of(each.request, fits))
        unfinished = sorted(self._running.unfinished(leftover=True), key=self._policy.turn)
        # That of the others may follow from what they have of the step, which can be nothing.
        limits = prompts.limits._replace(longest=self._longest)
        chunks = PromptChunks(room, limits, unfinished, prompts.scheduled, is_alone=not (others or decodes))
        chunks.add(unfinished)
        self._admitter.admit(chunks, now, leftover=True)
        scheduled = decodes + chunks.scheduled
        allowance.take(0, sum([each.num_tokens for each in scheduled]))
        return scheduled if others else self._speculator.with_drafts(scheduled, room)


def _next_image(request: Request, known: int) -> int:
    """Return how many tokens a step must compute of the image that is next, after `known` tokens.

    0 if a token can be computed alone.
    """
    count = 0 if request.images is None else request.images.next_end(known) - known
    return count if count > 1 else 0
