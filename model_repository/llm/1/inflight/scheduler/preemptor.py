"""Preemption: running requests lose their blocks to others, and wait again."""

from collections.abc import Iterable, Sequence

from inflight.beam_search.beam_group import BeamGroup
from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Preemption, Request
from inflight.scheduler.admission import Admission
from inflight.scheduler.policies.policy import SchedulingPolicy
from inflight.scheduler.running_set import RunningSet
from inflight.scheduler.scheduler_config import SchedulerConfig
from inflight.scheduler.step_time import StepTimeModel
from inflight.scheduler.waiting_queue import WaitingQueue


class Preemptor:
    """Preempts running requests when blocks run out, or for a waiting request that outranks them."""

    def __init__(
        self,
        config: SchedulerConfig,
        tables: BlockTables,
        times: StepTimeModel,
        policy: SchedulingPolicy,
        admission: Admission,
        waiting: WaitingQueue,
        running: RunningSet,
        *,
        swap_seconds_per_block: float,
    ) -> None:
        """`swap_seconds_per_block`: the time to copy a block between the cache and host memory in one direction."""
        self._mode = config.preemption_mode
        self._tables = tables
        self._times = times
        self._policy = policy
        self._admission = admission
        self._waiting = waiting
        self._running = running
        self._swap_seconds_per_block = swap_seconds_per_block
        self.now = 0.0
        """The time of preemptions."""
        self.preempted: list[Request] = []
        """Requests preempted in the step that is being planned."""
        self.num_preemptions = 0
        self.num_swaps = 0
        """Number of preemptions by swapping."""

    def begin_step(self, now: float) -> None:
        """Called before a step is planned."""
        self.now = now
        self.preempted = []

    # -- for blocks --------------------------------------------------------------------------------------------------

    def move_beams(self, groups: Iterable[BeamGroup]) -> None:
        """Give the next beams of each search their blocks. When blocks run out, preempt the last in rank."""
        for group in groups:
            while self._running.has(group.leader) and not self._tables.fork(group.moves):
                self.preempt(self._running.ranked()[-1])
            group.moved()

    def make_room(self) -> None:
        """Give running requests blocks for all their tokens. When blocks run out, preempt the last in rank."""
        for request in self._tables.outgrown(self._running.ranked()):
            while request.request_id in self._running and not self._tables.grow(request):
                self.preempt(self._running.ranked()[-1])

    # -- for a waiting request ---------------------------------------------------------------------------------------

    def preempt_for(self, request: Request) -> None:
        """Preempt running requests that a waiting one outranks, until it can join.

        Where it could not join even without all of them, they keep running.
        """
        if not self._admission.preempts or self._waiting.is_delayed(request) or self._has_room(request):
            return
        lower = self._policy.victims(request, self._running.ranked())
        if not lower or not self._may_fit_without(lower, request):
            return
        while lower and not self._has_room(request):
            if self._running.has(victim := lower.pop()):  # Beams go with their leader.
                self.preempt(victim)

    def _has_room(self, request: Request) -> bool:
        hit = self._tables.prefixes.lookup(request)
        has_slots = request.num_sequences <= self._running.free_slots
        return has_slots and self._admission.allows(request, hit, self._running)

    def _may_fit_without(self, others: Sequence[Request], request: Request) -> bool:
        """Return whether a waiting request may have room after the preemption of others.

        It may still have none: blocks that they share with requests that stay count as free here.
        """
        blocks = self._tables.pool.num_free + sum([len(other.blocks) for other in others])
        needed = self._tables.fresh_blocks(request, self._tables.prefixes.lookup(request))
        return needed <= blocks and request.num_sequences <= self._running.free_slots + len(others)

    def outranks(self, request: Request, other: Request) -> bool:
        """Return whether a waiting request may take the room of another one.

        A request that its timeout has delayed may not: a request preempted for it would be queued before it.
        """
        return self._policy.outranks(request, other) and not self._waiting.is_delayed(request)

    def may_take_room(self, request: Request) -> bool:
        """Return whether a waiting request may have the free blocks. After a preemption, they are for running requests,
        unless it outranks one that was preempted."""
        if not self.preempted:
            return True
        if not (self._policy.preempts or self._policy.leftover is not None) or request in self.preempted:
            return False
        return any(self.outranks(request, victim) for victim in self.preempted)

    # -- the preemption of one request -------------------------------------------------------------------------------

    def preempt(self, request: Request, *, swap: bool = True) -> None:
        """Free a request's blocks and queue it again. It keeps its tokens, but a beam search begins again.

        `swap`: its keys and values may be copied to host memory.
        """
        request = request.leader
        if request.beams is not None:
            self._running.leave(request)
            request.beams.restart()
        else:
            del self._running[request.request_id]
            if swap and self._swaps(request) and self._tables.swap_out(request):
                self.num_swaps += 1
            else:
                self._tables.release(request)
        request.preemptions.append(Preemption(self.now))
        self.num_preemptions += 1
        self.preempted.append(request)
        self._waiting.put_back(request)

    def _swaps(self, request: Request) -> bool:
        """Return whether to copy a request's keys and values to host memory instead of computing them again."""
        if self._mode != "auto":
            return self._mode == "swap"
        copy_seconds = 2 * len(request.blocks) * self._swap_seconds_per_block
        return copy_seconds < self._times.prefill_seconds(request.num_computed)
