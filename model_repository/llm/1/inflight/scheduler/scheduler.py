"""Continuous batching: requests join and leave at every step, within a token budget.

Decodes go first and prompts fill the rest of the budget in chunks (Sarathi-Serve, OSDI'24), so that a long prompt
never stops the others' tokens.
"""

from collections.abc import Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import DEADLINE, EXPIRED, Request
from inflight.scheduler.plan import Scheduled, StepPlan
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.timers import Timers
from inflight.scheduler.waiting_queue import WaitingQueue


class Scheduler:
    """By priority, then first come, first served; preempts by recompute when blocks run out.

    Every request that passes `fits` finishes, as long as requests of a higher priority don't keep coming: the oldest
    running one of the highest priority is never preempted for another, and alone it has the whole cache.
    """

    def __init__(
        self,
        tables: BlockTables,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policies: QueuePolicies | None = None,
    ) -> None:
        self.tables = tables
        self.token_budget = max_num_batched_tokens
        # More running sequences than the budget has tokens could not all advance in a step.
        self._max_running = min(max_num_seqs, max_num_batched_tokens)
        self.policies = policies or QueuePolicies()
        self.waiting = WaitingQueue(self.policies)
        self.running: dict[str, Request] = {}
        """In order of admission."""
        self._deadlines = Timers()
        self._preempted: list[Request] = []
        """In the step that is being planned."""
        self.num_preemptions = 0

    def fits(self, request: Request) -> bool:
        """Whether the request could ever run to its end, given the whole cache."""
        return self.tables.blocks_for(request.most_cached_tokens) <= self.tables.pool.num_blocks

    def add(self, request: Request) -> None:
        """Queue a request that `fits`."""
        self.waiting.add(request)
        if request.deadline is not None:
            self._deadlines.set(request, request.deadline)

    def remove(self, request_id: str) -> Request | None:
        """Forget a request, waiting or running, and take its blocks back; None if it is not here.

        Never between `schedule` and `commit` of a step.
        """
        request = self.waiting.remove(request_id) or self.running.pop(request_id, None)
        if request is not None:
            self._deadlines.clear(request_id)
            self.tables.release(request)
        return request

    def expire(self, now: float) -> list[tuple[Request, str, str | None]]:
        """Forget the requests whose time is up, and apply the queue's `timeout_action`.

        Returns each that left with its finish reason: `deadline` if it had run, `expired` and a message if not. Never
        between `schedule` and `commit` of a step.
        """
        ended: list[tuple[Request, str, str | None]] = []
        for request in self.waiting.time_out(now):
            self._deadlines.clear(request.request_id)
            assert request.wait_until is not None
            bound = round((request.wait_until - request.arrival) * 1e6)
            ended.append((request, EXPIRED, f"Request timeout expired: it waited longer than its timeout, {bound} us"))
        for request in self._deadlines.due(now):
            assert request.deadline is not None
            bound = round((request.deadline - request.arrival) * 1e3)
            has_run = request.request_id in self.running or request.num_preemptions > 0
            message = None if has_run else f"deadline_ms is {bound}; it passed while the request waited"
            ended.append((request, DEADLINE if has_run else EXPIRED, message))
            self.remove(request.request_id)
        return ended

    def schedule(self) -> StepPlan:
        """Plan the next step; an empty plan means that nothing waits or runs."""
        self._preempted = []
        decodes = self._schedule_decodes()
        chunks = self._schedule_chunks(self.token_budget - len(decodes))
        if not self._preempted:
            left = self.token_budget - len(decodes) - sum(chunk.num_tokens for chunk in chunks)
            chunks += self._admit(left)
        return StepPlan(tuple(decodes + chunks), preempted=tuple(self._preempted))

    def _schedule_decodes(self) -> list[Scheduled]:
        decodes = []
        for request in [r for r in self._ranked() if r.num_uncomputed == 1]:
            if request.request_id in self.running and self._make_room(request):
                decodes.append(Scheduled(request, 1))
        return decodes

    def _ranked(self) -> list[Request]:
        """Running requests by priority, then by admission."""
        return sorted(self.running.values(), key=lambda request: request.priority)

    def _make_room(self, request: Request) -> bool:
        """Grow a request's table, preempting lower ranked ones if need be; False if it had to go itself."""
        while not self.tables.grow(request):
            victim = self._ranked()[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Drop a request's blocks and put it at the head of its level: its tokens stay, their keys and values don't."""
        del self.running[request.request_id]
        self.tables.release(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._preempted.append(request)
        self.waiting.put_back(request)

    def _schedule_chunks(self, budget: int) -> list[Scheduled]:
        chunks = []
        for request in self.running.values():
            if budget > 0 and request.num_uncomputed > 1:
                chunk = Scheduled(request, min(budget, request.num_uncomputed))
                chunks.append(chunk)
                budget -= chunk.num_tokens
        return chunks

    def _admit(self, budget: int) -> list[Scheduled]:
        admitted = []
        while budget > 0 and len(self.running) < self._max_running and (request := self.waiting.first()) is not None:
            first_time = request.num_preemptions == 0
            if not self.tables.admit(request):
                break
            self.waiting.remove(request.request_id)
            self.running[request.request_id] = request
            if first_time:
                request.num_cached = request.num_computed
            chunk = Scheduled(request, min(budget, request.num_uncomputed))
            admitted.append(chunk)
            budget -= chunk.num_tokens
        return admitted

    def commit(self, plan: StepPlan, tokens: Sequence[int]) -> list[tuple[Request, str | None]]:
        """Account for a step that ran: `tokens[i]` was sampled for the i-th of `plan.sampling`.

        Returns the requests that got a token, each with its finish reason; finished ones have left.
        """
        sampling = plan.sampling
        for share in plan.scheduled:
            self.tables.commit(share.request, share.num_tokens)
        outcome = []
        for request, token in zip(sampling, tokens, strict=True):
            request.token_ids.append(token)
            reason = request.finish_reason()
            if reason is not None:
                self.remove(request.request_id)
            outcome.append((request, reason))
        return outcome
