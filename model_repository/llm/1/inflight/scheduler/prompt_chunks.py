"""Which tokens of prompts a step computes."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest
from inflight.scheduler.prefill_budget import PrefillAllowance


class ChunkLimits(NamedTuple):
    """What chunks of prompts are like."""

    mixes: bool
    """Whether prompts are cut into chunks. Otherwise only a prompt that is longer than any step is cut, and gets steps
    of its own."""
    longest: int
    """Maximum number of tokens of one prompt in a step."""
    max_partial: int
    """Maximum number of prompts that are computed in part when a new one joins that must be cut too."""
    beyond: int = 0
    """How many tokens more than its allowance a step may have for the rest of an image that cannot be cut."""


class PromptChunks:
    """The chunks of prompts in a step that is being planned. They share an allowance."""

    def __init__(
        self,
        allowance: PrefillAllowance,
        limits: ChunkLimits,
        unfinished: Sequence[Request],
        others: Sequence[ScheduledRequest] = (),
        postponed: Iterable[Request] = (),
        *,
        is_alone: bool,
    ) -> None:
        """`unfinished`: the running requests whose prompts may have chunks here. `others`: chunks of prompts in the
        same step that have an allowance of their own. `postponed`: those of `unfinished` that wait for `catch_up`.
        `is_alone`: the step has no decodes."""
        self.allowance = allowance
        self.limits = limits
        self.scheduled: list[ScheduledRequest] = []
        self._others = others
        self._postponed = list(postponed)
        self._is_alone = is_alone
        self._holds_others = False
        """Whether a running prompt waits for a step with room for an image. New requests would take that room."""
        self._num_partial = len(unfinished)
        """How many prompts have begun and do not end in this step, as far as it is planned."""

    @property
    def of_step(self) -> list[ScheduledRequest]:
        """All chunks of prompts in the step so far."""
        return [*self._others, *self.scheduled]

    def add(self, requests: Iterable[Request]) -> None:
        """Schedule the next chunks of running prompts, as far as they fit."""
        for request in requests:
            fits = self._takes(request, request.num_computed)
            if not fits and self.allowance.fits(request.num_computed, 1):
                # Its tenant has had its share of the step, or there is no room for an image.
                self._holds_others |= self.allowance.fits(request.num_computed, 1, request.tenant) > 0
                continue
            if not fits or (self.scheduled and not self.limits.mixes and fits < request.num_uncomputed):
                break
            self._cut(request)

    def catch_up(self, tenant: str | None = None) -> list[ScheduledRequest]:
        """Schedule the next chunks of postponed requests, of one tenant or of all. Return these chunks."""
        if not self._postponed:
            return []
        first = len(self.scheduled)
        self.add([request for request in self._postponed if tenant in (None, request.tenant)])
        self._postponed = [request for request in self._postponed if tenant not in (None, request.tenant)]
        return self.scheduled[first:]

    def fits(self, request: Request, known: int) -> bool:
        """Return whether the prompt of a new request fits into the rest of the step, or may be cut.

        `known` of its tokens would count as computed.
        """
        uncomputed = len(request.token_ids) - known
        fits = self._takes(request, known)
        if not fits or self._holds_others:
            return False
        if not self.limits.mixes:
            return fits == uncomputed or not (self._others or self.scheduled)
        return fits == uncomputed or self._num_partial < self.limits.max_partial

    def begin(self, request: Request) -> ScheduledRequest:
        """Schedule and return the first chunk of a request that has just joined."""
        self._num_partial += 1
        return self._cut(request)

    def _cut(self, request: Request) -> ScheduledRequest:
        first = request.num_computed
        tokens = self._takes(request, first)
        self.allowance.take(first, tokens, request.tenant)
        chunk = ScheduledRequest.next_of(request, tokens)
        self._num_partial -= chunk.is_final_chunk
        self.scheduled.append(chunk)
        return chunk

    def _takes(self, request: Request, first: int) -> int:
        """Return how many of a request's tokens from `first` on may be in the step, so that no image is cut.

        The rest of an image may take longer than the step should.
        """
        wanted = min(self.limits.longest, len(request.token_ids) - first)
        fits = self.allowance.fits(first, wanted, request.tenant)
        if not fits or request.images is None:
            return fits
        end = request.images.last_end(first, first + fits)
        if end > first:
            return end - first
        rest = request.images.next_end(first) - first
        is_first = self._is_alone and not self.of_step
        return rest if is_first or rest <= self.allowance.tokens_left + self.limits.beyond else 0
