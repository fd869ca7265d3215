"""What becomes of the requests of a step that gave no results."""

from collections.abc import Callable, Set

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.preemptor import Preemptor
from inflight.scheduler.running_set import RunningSet
from inflight.scheduler.step_limit import StepLimit


class FailedSteps:
    """The part of the scheduler that knows what a failed step leaves behind."""

    def __init__(
        self,
        tables: BlockTables,
        limit: StepLimit,
        running: RunningSet,
        preemptor: Preemptor,
        *,
        remove: Callable[[str], Request | None],
    ) -> None:
        """`remove` is the scheduler's."""
        self._tables = tables
        self._limit = limit
        self._running = running
        self._preemptor = preemptor
        self._remove = remove

    def fail(self, plan: StepPlan) -> list[Request]:
        """Remove the requests of a step that failed. What the step should have copied is computed again."""
        lost = self._give_up(plan)
        removed = [s.request.leader for s in plan.scheduled if self._remove(s.request.leader.request_id)]
        # Beams may get copies of blocks and states in a step in which they compute nothing.
        self._recompute(lost, {copy for _, copy in plan.forked})
        return removed

    def break_off(self, plan: StepPlan) -> None:
        """After a step that was broken off, preempt the requests that have lost something by it.

        The next step computes the tokens of the others again, and writes their keys and values to the same places.
        """
        lost = self._give_up(plan)
        for each in plan.scheduled:
            self._tables.trim(each.request)
        # Nobody knows how many copies have been made.
        copied = {block for _, block in (*plan.forked, *plan.swapped_in)}
        copied.update(block for _, blocks in plan.imported for block in blocks)
        self._recompute(lost, copied)

    def _give_up(self, plan: StepPlan) -> set[int]:
        """Forget what a step was to copy to host memory. Return the slots whose recurrent states are lost."""
        for request in plan.preempted:
            self._tables.forget_swapped(request)
        self._tables.host.forget_arriving()
        return self._tables.abandon_states(plan.states)

    def shrink_after_oom(self, plan: StepPlan) -> bool:
        """After a step for which the device had too little memory, limit the next steps to half as many tokens.

        If more requests run than the new limit allows, the last in rank are preempted. Everything else stays as it was
        before the step, whose block copies have been made. But recurrent states that the step was to change are
        computed again. Return False and do nothing if the step cannot be halved.
        """
        for each in plan.scheduled:
            self._tables.trim(each.request)
        if not plan.can_be_halved:
            return False
        self._limit.shrink(plan.num_tokens)
        self._recompute(self._tables.abandon_states(plan.states))
        for request in reversed(self._running.ranked()[self._limit.sequences :]):
            if self._running.has(request) and request.leader is not self._running.ranked()[0].leader:
                self._preemptor.preempt(request, swap=False)
        return True

    def _recompute(self, slots: Set[int], blocks: Set[int] = frozenset()) -> None:
        """Preempt the running requests that have lost their states in `slots`, or keys and values in `blocks`."""
        for request in self._running.ranked() if slots or blocks else ():
            has_lost = request.slot in slots or not blocks.isdisjoint(request.blocks)
            if has_lost and self._running.has(request):
                self._preemptor.preempt(request, swap=False)
