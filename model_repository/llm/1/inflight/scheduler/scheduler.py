"""Plans steps: requests join and leave, within a token budget and a cache.

By default decodes go first and prompts fill the rest of the budget in chunks (Sarathi-Serve, OSDI'24), so that a long
prompt never stops the others' tokens. Who is next, whom the cache has room for, when a batch forms and how many prompt
tokens a step takes are parts of their own.
"""

import sys
from collections.abc import Callable, Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import DEADLINE, ERROR, EXPIRED, Request
from inflight.scheduler import factory
from inflight.scheduler.committed import Committed
from inflight.scheduler.length_predictor import LengthPredictor
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.scheduler.policies.policy import SchedulingPolicy
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.scheduler_config import SchedulerConfig
from inflight.scheduler.step_time import StepTimeModel
from inflight.scheduler.timers import Timers
from inflight.scheduler.waiting_queue import WaitingQueue
from inflight.step_result import StepResult


class Scheduler:
    """The running set and the queue.

    Every request that passes `fits` finishes: the policies let nobody be overtaken without end (strict priority levels
    are the exception that one asks for), and of the running set the first in rank is never preempted for another.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        tables: BlockTables,
        policies: QueuePolicies | None = None,
        *,
        swap_seconds_per_block: float = 0.0,
        make_queue: Callable[[QueuePolicies, SchedulingPolicy], WaitingQueue] = WaitingQueue,
    ) -> None:
        """`swap_seconds_per_block` is what copying a block between the cache and host memory takes, one way.

        Raises:
            ValueError: the scheduling policy and the priority levels don't go together.
        """
        self.config = config
        self.tables = tables
        self.policies = policies or QueuePolicies()
        factory.check_levels(config.scheduling_policy, self.policies.priority_levels)
        self.times = StepTimeModel()
        self.lengths = LengthPredictor()
        self.policy = factory.make_policy(config, tables, self.times, self.lengths)
        self.waiting = make_queue(self.policies, self.policy)
        self.running: dict[str, Request] = {}
        """In order of admission."""
        self._admission = factory.make_admission(config, tables, self.lengths)
        self._batching = factory.make_batching(config, self.waiting, self.running)
        self._budget = factory.make_budget(config, self.times)
        self.token_budget = config.max_num_batched_tokens
        """Most tokens of any step."""
        self._max_share = (self._batching.mixes and config.long_prefill_token_threshold) or sys.maxsize
        self._max_partial = config.max_num_partial_prefills or sys.maxsize
        self._swap_seconds_per_block = swap_seconds_per_block
        self._deadlines = Timers()
        self._preempted: list[Request] = []
        """In the step that is being planned."""
        self.num_preemptions = 0
        self.num_swaps = 0
        """How many of the preemptions were by swapping."""

    @property
    def _max_running(self) -> int:
        # More running sequences than the budget has tokens could not all advance in a step.
        return min(self.config.max_num_seqs, self.token_budget)

    @property
    def wakes_at(self) -> float | None:
        """After an empty plan: when to `expire` and plan again though nothing arrives."""
        if self._batching.wakes_at is None:
            return None
        return min(self._batching.wakes_at, self._deadlines.next_due, self.waiting.next_due)

    def fits(self, request: Request) -> bool:
        """Whether the request could ever run to its end, given the whole cache."""
        return self.tables.blocks_for(request.max_cached_tokens) <= self.tables.pool.num_blocks

    # -- requests come and go ----------------------------------------------------------------------------------------

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
        for request, message in self.waiting.expire(now):
            self._deadlines.clear(request.request_id)
            self.tables.release(request)  # It may have run, and left something in host memory.
            ended.append((request, EXPIRED, message))
        for request in self._deadlines.due(now):
            assert request.deadline is not None
            bound = round((request.deadline - request.arrival) * 1e3)
            has_run = request.request_id in self.running or request.num_preemptions > 0
            late = None if has_run else f"deadline_ms is {bound}; it passed while the request waited"
            ended.append((request, DEADLINE if has_run else EXPIRED, late))
            self.remove(request.request_id)
        return ended

    # -- planning ----------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step; an empty plan means that nothing runs, and nothing that waits may join yet."""
        self._preempted = []
        self.tables.swap_space.settle()
        self._batching.begin_step(now)
        self._make_room()
        self._make_way(now)
        shares = ScheduledRequest.decodes_of(self._ranked()) if self._batching.mixes else []
        without_token = len(self.waiting) + len(self.running) - len(shares)
        cached = sum([share.first for share in shares])
        budget = self._budget.for_prompts(len(shares), cached, without_token)
        budget = budget._replace(tokens=min(budget.tokens, self.token_budget - len(shares)))
        shares += self._prompts(budget.tokens, now)
        num_decodes = 0
        if not shares and self.running:
            shares = ScheduledRequest.decodes_of(self._ranked())
            num_decodes = len(shares)
        padding = self._batching.padding(num_decodes)
        out, into = self.tables.take_copies()
        return StepPlan(
            tuple(shares),
            self.tables.gather(
                [share[0] for share in shares], max([f + len(ids) for _, f, ids, *_ in shares], default=0)
            ),
            preempted=tuple(self._preempted),
            swapped_out=out,
            swapped_in=into,
            padding=padding,
            prefill_budget=budget,
        )

    def _ranked(self) -> list[Request]:
        """Running requests by rank, then by admission."""
        running = list(self.running.values())
        if self.policies.priority_levels:
            running.sort(key=self.policy.rank)
        return running

    def _prompts(self, budget: int, now: float) -> list[ScheduledRequest]:
        """Chunks of the prompts that are being computed, and newcomers; those that the first of these outranks wait."""
        going = [request for request in self._ranked() if len(request.token_ids) - request.num_computed > 1]
        newcomer = self._batching.next(now) if self.policy.preempts and going else None
        later = [request for request in going if newcomer is not None and self._outranks(newcomer, request)]
        chunks = self._chunks([request for request in going if request not in later], budget)
        left = budget - sum(chunk.num_tokens for chunk in chunks)
        partial = len(going) - sum(chunk.samples for chunk in chunks)
        chunks += self._admit(left, partial, now, chunks)
        left = budget - sum(chunk.num_tokens for chunk in chunks)
        return chunks if chunks and not self._batching.mixes else chunks + self._chunks(later, left)

    def _chunks(self, requests: Sequence[Request], budget: int) -> list[ScheduledRequest]:
        chunks: list[ScheduledRequest] = []
        for request in requests:
            if budget <= 0 or (chunks and not self._batching.mixes and request.num_uncomputed > budget):
                break  # Where prompts are not cut, one that is longer than any step has steps of its own.
            chunks.append(self._chunk(request, budget))
            budget -= chunks[-1].num_tokens
        return chunks

    def _chunk(self, request: Request, budget: int) -> ScheduledRequest:
        return ScheduledRequest.next_of(request, min(budget, self._max_share, request.num_uncomputed))

    def _admit(
        self, budget: int, partial: int, now: float, chunks: Sequence[ScheduledRequest]
    ) -> list[ScheduledRequest]:
        admitted: list[ScheduledRequest] = []
        filling = {name for c in chunks for name in self.tables.hashes_filled_by(c.request, c.num_tokens)}
        while budget > 0 and len(self.running) < self._max_running and (request := self._batching.next(now)):
            if self._preempted and not self._made_way_for(request):
                break  # The blocks that became free are for those that run.
            hit = self.tables.lookup(request)
            if self.tables.next_hash(request, hit) in filling:
                # Another request computes that block in this very step; after it, this one can share it.
                self.waiting.hold(request)
                continue
            if not self._admission.allows(request, hit, self.running):
                break
            if not self._suits(request, hit, budget, partial, bool(chunks or admitted)):
                break
            self._join(request, hit)
            admitted.append(self._chunk(request, budget))
            budget -= admitted[-1].num_tokens
            partial += not admitted[-1].samples
            filling.update(self.tables.hashes_filled_by(request, admitted[-1].num_tokens))
        self.waiting.release_held()
        return admitted

    def _suits(self, request: Request, hit: Sequence[int], budget: int, partial: int, has_others: bool) -> bool:
        """Whether a newcomer's prompt fits into what is left of the step, or may be cut."""
        known = max(len(hit) * self.tables.block_size, request.num_swapped)
        whole = len(request.token_ids) - known <= min(budget, self._max_share)
        if not self._batching.mixes:
            # One that is longer than any step has steps of its own.
            return whole or not has_others
        return whole or partial < self._max_partial

    def _join(self, request: Request, hit: Sequence[int]) -> None:
        first_time = request.num_preemptions == 0
        self.waiting.remove(request.request_id)
        self.tables.admit(request, hit)
        self.running[request.request_id] = request
        if first_time:
            request.num_cached = request.num_computed
        self.policy.admitted(request)
        self._batching.joined(request)

    # -- preemption --------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Give running requests blocks for all their tokens; when blocks run out, the last in rank makes room."""
        for request in self.tables.outgrown(self._ranked()):
            while request.request_id in self.running and not self.tables.grow(request):
                self._preempt(self._ranked()[-1])

    def _make_way(self, now: float) -> None:
        """Let whoever is next take the places of running requests that it outranks."""
        if not (self.policy.preempts and self._admission.preempts):
            return
        request = self._batching.next(now)
        if request is None:
            return
        lower = [other for other in self._ranked() if self._outranks(request, other)]
        while lower and not self._has_place(request):
            self._preempt(lower.pop())

    def _has_place(self, request: Request) -> bool:
        hit = self.tables.lookup(request)
        return len(self.running) < self._max_running and self._admission.allows(request, hit, self.running)

    def _outranks(self, request: Request, other: Request) -> bool:
        """Whether a waiting request has a higher level than another one and goes before it.

        One whose timeout has delayed it has no such claim: who made way for it would be queued before it.
        """
        first = request.priority < other.priority and self.policy.rank(request) < self.policy.rank(other)
        return first and not self.waiting.is_delayed(request)

    def _made_way_for(self, request: Request) -> bool:
        if not self.policy.preempts or request in self._preempted:
            return False
        return any(self._outranks(request, victim) for victim in self._preempted)

    def _preempt(self, request: Request, *, swap: bool = True) -> None:
        """Take a request's blocks and queue it again: its tokens stay."""
        del self.running[request.request_id]
        if swap and self._swaps(request) and self.tables.swap_out(request):
            self.num_swaps += 1
        else:
            self.tables.release(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._preempted.append(request)
        self.waiting.put_back(request)

    def _swaps(self, request: Request) -> bool:
        """Whether a request's keys and values are to be kept in host memory, not computed again."""
        if self.config.preemption_mode != "auto":
            return self.config.preemption_mode == "swap"
        there_and_back = 2 * len(request.blocks) * self._swap_seconds_per_block
        return there_and_back < self.times.predict(request.num_computed, 0)

    # -- after the step ----------------------------------------------------------------------------------------------

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn from how long a step took. Before `commit`."""
        self.times.observe(plan.num_tokens, plan.num_cached, seconds)
        self._batching.observe(plan, seconds)

    def fail_step(self, plan: StepPlan) -> list[Request]:
        """Forget the requests of a step that failed; what was to be copied out in it is computed again."""
        for request in plan.preempted:
            self.tables.forget_swapped(request)
        return [share.request for share in plan.scheduled if self.remove(share.request.request_id)]

    def shrink_after_oom(self, plan: StepPlan) -> bool:
        """After a step for which the device had too little memory: no later one has more than half as many tokens.

        Running requests that are too many for that are preempted, the last in rank first; all else stays as it was
        before the step, whose copies have been made. False after a step that cannot be halved, and nothing is done.
        """
        if plan.num_tokens == 1:
            return False
        self.token_budget = plan.num_tokens // 2
        for request in reversed(self._ranked()[self._max_running :]):
            self._preempt(request, swap=False)
        return True

    def commit(self, plan: StepPlan, results: Sequence[StepResult], now: float) -> list[Committed]:
        """Account for a step that ran: `results[i]` is that of the i-th of `plan.sampling`, known at `now`.

        A request ends with the first of its new tokens that says so; those after it are dropped. Finished requests
        have left, and so has one without a token, with the finish reason `error`.
        """
        new = [result.token_ids for result in results]
        failed = set() if all(new) else {s.request for s, ids in zip(plan.sampling, new, strict=True) if not ids}
        size = self.tables.block_size
        for request, first, token_ids, *_ in plan.scheduled:
            request.has_run = True
            end = first + len(token_ids)
            # Keys and values of one that failed are not offered to others.
            if end // size > first // size and request not in failed:
                self.tables.offer(request, end)
            request.num_computed = end
        committed = [self._append(share[0], ids, now) for share, ids in zip(plan.sampling, new, strict=True)]
        self.policy.generated((outcome.request, len(outcome.token_ids)) for outcome in committed)
        return committed

    def _append(self, request: Request, new: Sequence[int], now: float) -> Committed:
        if not new:
            self.remove(request.request_id)
            return Committed(request, (), ERROR)
        request.last_token_at = now
        token_ids, reason = request.append(new)
        if reason is not None:
            self.lengths.observe(request)
            self.remove(request.request_id)
        return Committed(request, token_ids, reason)
