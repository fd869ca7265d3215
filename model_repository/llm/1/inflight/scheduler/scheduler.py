"""Continuous batching: requests join and leave at every step, within a token budget.

Decodes go first and prompts fill the rest of the budget in chunks (Sarathi-Serve, OSDI'24), so that a long prompt
never stops the others' tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.plan import Scheduled, StepPlan


class Scheduler:
    """First come, first served; preempts by recompute when blocks run out.

    Every request that passes `fits` finishes: the oldest running one is never preempted for a younger one, and alone
    it has the whole cache.
    """

    def __init__(self, tables: BlockTables, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.tables = tables
        self._token_budget = max_num_batched_tokens
        # More running sequences than the budget has tokens could not all advance in a step.
        self._max_running = min(max_num_seqs, max_num_batched_tokens)
        self.waiting: OrderedDict[str, Request] = OrderedDict()
        self.running: dict[str, Request] = {}
        """In order of admission."""
        self.num_preemptions = 0

    def fits(self, request: Request) -> bool:
        """Whether the request could ever run to its end, given the whole cache."""
        return self.tables.blocks_for(request.most_cached_tokens) <= self.tables.pool.num_blocks

    def add(self, request: Request) -> None:
        """Queue a request that `fits`."""
        self.waiting[request.request_id] = request

    def remove(self, request_id: str) -> Request | None:
        """Forget a request, waiting or running, and take its blocks back; None if it is not here.

        Never between `schedule` and `commit` of a step.
        """
        request = self.waiting.pop(request_id, None) or self.running.pop(request_id, None)
        if request is not None:
            self.tables.release(request)
        return request

    def schedule(self) -> StepPlan:
        """Plan the next step; an empty plan means that nothing waits or runs."""
        preemptions_before = self.num_preemptions
        decodes = self._schedule_decodes()
        chunks = self._schedule_chunks(self._token_budget - len(decodes))
        if self.num_preemptions == preemptions_before:
            left = self._token_budget - len(decodes) - sum(chunk.num_tokens for chunk in chunks)
            chunks += self._admit(left)
        return StepPlan(tuple(decodes + chunks))

    def _schedule_decodes(self) -> list[Scheduled]:
        decodes = []
        for request in [r for r in self.running.values() if r.num_uncomputed == 1]:
            if request.request_id in self.running and self._make_room(request):
                decodes.append(Scheduled(request, 1))
        return decodes

    def _make_room(self, request: Request) -> bool:
        """Grow a request's table, preempting younger ones if need be; False if it had to go itself."""
        while not self.tables.grow(request):
            victim = next(reversed(self.running.values()))
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Drop a request's blocks and put it at the head of the queue: its tokens stay, their keys and values don't."""
        del self.running[request.request_id]
        self.tables.release(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting[request.request_id] = request
        self.waiting.move_to_end(request.request_id, last=False)

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
        while budget > 0 and self.waiting and len(self.running) < self._max_running:
            request = next(iter(self.waiting.values()))
            first_time = request.num_preemptions == 0
            if not self.tables.admit(request):
                break
            del self.waiting[request.request_id]
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
