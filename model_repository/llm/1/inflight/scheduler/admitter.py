"""Lets waiting requests join the running set."""

from collections.abc import Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.admission import Admission
from inflight.scheduler.batching import Batching
from inflight.scheduler.policies.policy import SchedulingPolicy
from inflight.scheduler.preemptor import Preemptor
from inflight.scheduler.prompt_chunks import PromptChunks
from inflight.scheduler.running_set import RunningSet
from inflight.scheduler.waiting_queue import WaitingQueue

_MOST_HELD = 64
"""So many requests that wait for a block of another one are passed in a step. To look at each takes up to a millisecond
if its prompt is long, and a burst may bring thousands with the same beginning."""


class Admitter:
    """Admits the requests that the batching strategy offers, while the step has tokens and they have slots and room.

    The admission policy says whether the cache has room.
    """

    def __init__(
        self,
        tables: BlockTables,
        policy: SchedulingPolicy,
        batching: Batching,
        admission: Admission,
        waiting: WaitingQueue,
        running: RunningSet,
        preemptor: Preemptor,
    ) -> None:
        self._tables = tables
        self._policy = policy
        self._batching = batching
        self._admission = admission
        self._waiting = waiting
        self._running = running
        self._preemptor = preemptor
        self.lacks_room = False
        """Whether a request could not join the last step because running requests held the slots or the blocks."""

    def admit(self, chunks: PromptChunks, now: float, *, leftover: bool = False) -> None:
        """Let requests join, and add the first chunks of their prompts to the others of the step.

        `leftover`: only leftover requests join; otherwise only those that are not.
        """
        self.lacks_room = False
        filling = {
            name
            for chunk in chunks.of_step
            for name in self._tables.prefixes.filled_by(chunk.request, chunk.num_tokens)
        }
        held = 0
        while held < _MOST_HELD and chunks.allowance.fits(0, 1) and (request := self._batching.next(now)):
            if request.is_leftover != leftover:
                break
            for chunk in chunks.catch_up(request.tenant):
                filling.update(self._tables.prefixes.filled_by(chunk.request, chunk.num_tokens))
            if self._policy.leftover is not None and not leftover:
                self._preemptor.preempt_for(request)
            if self._running.free_slots <= 0:
                break
            if not self._preemptor.may_take_room(request) or not self._has_slots(request):
                self.lacks_room = True
                break
            hit = self._tables.prefixes.lookup(request)
            if self._tables.prefixes.is_filling(request, hit, filling):
                # Another request computes this block in this step. After the step, the request can share the block.
                self._waiting.hold(request)
                held += 1
                continue
            if not self._admission.allows(request, hit, self._running):
                self.lacks_room = True
                break
            if not chunks.fits(request, self._tables.num_known(request, hit)):
                break
            self._join(request, hit, now)
            filling.update(self._tables.prefixes.filled_by(request, chunks.begin(request).num_tokens))
        self.lacks_room |= self._running.free_slots <= 0 and len(self._waiting) > 0
        self._waiting.release_held()

    def num_known_if_admitted(self, request: Request) -> int | None:
        """Return how many tokens of a waiting request would count as computed if it joined now; None if it cannot."""
        hit = self._tables.prefixes.lookup(request)
        has_slots = self._running.free_slots > 0 and self._has_slots(request)
        if not has_slots or not self._preemptor.may_take_room(request):
            return None
        return self._tables.num_known(request, hit) if self._admission.allows(request, hit, self._running) else None

    def _has_slots(self, request: Request) -> bool:
        # The limit may have shrunk below the number of a search's beams since it arrived. Then the search runs alone.
        return not self._running or request.num_sequences <= self._running.free_slots

    def _join(self, request: Request, hit: Sequence[int], now: float) -> None:
        first_time = request.num_preemptions == 0
        self._waiting.remove(request.request_id)
        self._running.join(request, hit)
        if first_time:
            request.num_cached = request.num_computed
            request.first_step_at = now
        else:
            request.preemptions[-1].resumed_at = now
        self._policy.admitted(request)
        self._batching.joined(request)
