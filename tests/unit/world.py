"""A scheduler with a model, and everything that must hold of the two whatever happens."""

from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_cache.imported_blocks import ImportedBlocks
from inflight.pooling_params import POOLINGS
from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.admission import MaxUtilization
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.policies.policy import SchedulingPolicy
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.waiting_queue import WaitingQueue
from tests.unit.builders import make_request, make_scheduler
from tests.unit.cache_mirror import CacheMirror
from tests.unit.fake_drafter import FakeDrafter
from tests.unit.fake_model import FakeModel, ForcingGrammar, expected_output, expected_readings
from tests.unit.naive_classes import NaiveClasses
from tests.unit.naive_queue import NaiveQueue
from tests.unit.naive_steps import (
    NaiveBatch,
    arriving_blocks,
    check_drafts,
    check_holds,
    check_leftover,
    check_limits,
    check_swaps,
    check_time,
)


class WatchedQueue(WaitingQueue):
    """A queue that tells the naive one of a world who enters and leaves."""

    def __init__(self, world: "World", limits: QueuePolicies, policy: SchedulingPolicy) -> None:
        super().__init__(limits, policy)
        self._world = world

    def put(self, request: Request, *, delayed: bool, newcomer: bool = False) -> None:
        self._world.naive.put(request, delayed=delayed, newcomer=newcomer)
        super().put(request, delayed=delayed, newcomer=newcomer)

    def take(self, request: Request) -> bool:
        if request.request_id in self._world.naive.entries:
            self._world.naive.take(request)
        return super().take(request)

    def hold(self, request: Request) -> None:
        self._world.check_turn(request)
        self._world.held.append(request)
        super().hold(request)

    def peek(self, count: int) -> list[Request]:
        found = super().peek(count)
        self._world.held.clear()  # It looks by holding.
        return found

    def remove(self, request_id: str) -> Request | None:
        if self._world.planning:
            request = self._world.live[request_id]
            self._world.check_turn(request)
            self._world.naive.take(request, joins=True)
        return super().remove(request_id)


class World:
    """A scheduler with a model, and what is known of every request added."""

    def __init__(self, settings: dict[str, Any]) -> None:
        settings = dict(settings)
        self.step_seconds: tuple[float, float, float, float] = settings.pop("step_seconds")
        drafts = settings.pop("drafts")
        self.recorded = BlockEvents()
        self.scheduler = make_scheduler(
            **settings,
            make_queue=partial(WatchedQueue, self),
            drafter=FakeDrafter(drafts) if drafts in FakeDrafter.KINDS else None,
            events=self.recorded,
        )
        self.config, self.tables = self.scheduler.config, self.scheduler.tables
        self.block_size = self.tables.block_size
        self.mirror = CacheMirror(self.tables.prefixes.hasher, self.block_size)
        self.unsalted: list[Request] = []
        """All requests so far whose blocks anybody may reuse."""
        self.model = FakeModel(self.block_size)
        self.naive = NaiveClasses(self.scheduler) if self.config.request_classes else NaiveQueue(self.scheduler)
        self.batch = NaiveBatch(self.config)
        self.live: dict[str, Request] = {}
        """Unfinished requests in order of arrival."""
        self.now = 0.0
        self.trace: list[dict[str, int]] = []
        self.finished: dict[str, list[int]] = {}
        self.held: list[Request] = []
        """Requests that wait for another's prefix in the step that is being planned."""
        self.read: dict[str, list[int]] = {}
        """The scores of prompt tokens that each request has got."""
        self.writer: dict[int, str] = {}
        """Tenant whose keys and values a block holds."""
        self.host_writer: dict[int, str] = {}
        """The same of a block in host memory."""
        self.planning = False

    def check_turn(self, request: Request) -> None:
        """A bucket takes whoever fits it; all others must be first, but for leftover ones that have just made room."""
        if self.config.batching_strategy != "bucketed":
            made_room = [] if self._is_leftover(request) else self.scheduler.preemptor.preempted
            order = [each for each in self.naive.order() if not (self._is_leftover(each) and each in made_room)]
            assert order[0] is request, f"{request.request_id} jumps the queue"

    # -- what happens ------------------------------------------------------------------------------------------------

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        min_tokens: int,
        stops: list[int],
        reads: str,
        *,
        guided: bool,
        imports: int = 0,
        imports_from: int = 0,
        **limits: Any,
    ) -> None:
        """
        Args:
            reads: what of the prompt; nothing, the scores, the scores alone, or states for an embedding.
            imports: so many tokens of the prompt, at most all, come with their keys and values.
            imports_from: the first block that comes.
        """
        name = f"r{len(self.trace)}-{len(self.live)}-{len(self.finished)}"
        request = make_request(
            name,
            prompt,
            max_tokens=0 if reads == "scores alone" else max_tokens,
            min_tokens=0 if reads == "scores alone" or reads in POOLINGS else min(min_tokens, max_tokens),
            prompt_logprobs=0 if reads.startswith("scores") else None,
            pooling=reads if reads in POOLINGS else None,
            stop_token_ids=stops,
            grammar=ForcingGrammar(prompt) if guided else None,
            arrival=self.now,
            options=RequestOptions(**limits),
        )
        imports = min(imports, len(prompt))
        first = min(imports_from, max(0, imports - 1) // self.block_size)
        if imports:
            data = self.model.export(prompt[:imports])[first:]
            request.imported = ImportedBlocks(imports, data, first)
        self.scheduler.policies.apply(request)
        blocks = -(-(len(prompt) + max(0, request.max_tokens - 1)) // self.block_size)
        assert self.scheduler.fits(request) == (blocks <= self.tables.pool.num_blocks)
        if self.scheduler.fits(request) and name not in self.live:
            self.live[name] = request
            self.scheduler.add(request)
            if not (request.tenant and self.tables.prefixes.per_tenant):
                self.unsalted.append(request)

    def cancel(self, number: int) -> None:
        name = list(self.live)[number % len(self.live)]
        assert self.scheduler.remove(name) is self.live[name]
        del self.live[name]

    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds / 1000
        lost = self.naive.expire(self.now)
        for request, reason, message in self.scheduler.expire(self.now):
            assert self.live.pop(request.request_id) is request
            waited_too_long = request.wait_until is not None and request.wait_until <= self.now
            out_of_time = request.deadline is not None and request.deadline <= self.now
            if reason in ("expired", "shed"):
                assert (reason == "expired") == out_of_time
                assert message
                assert waited_too_long or out_of_time or request in lost
                assert request.token_ids == request.prompt_ids
            else:
                assert (reason, message) == ("deadline", None)
                assert out_of_time
        for request in self.live.values():
            assert request not in lost
            assert request.deadline is None or request.deadline > self.now
        for entry in self.naive.entries.values():
            wait_until = entry.request.wait_until
            in_time = wait_until is None or wait_until > self.now
            assert in_time or entry.delayed or entry.request.num_preemptions

    def step(self) -> None:
        self.pass_time(0)
        plan = self._plan()
        if not plan.scheduled:
            return
        results = self.model.run(plan)
        a, b, c, d = self.step_seconds
        seconds = a + b * plan.num_tokens + c * plan.num_cached + d * plan.num_pairs
        self.scheduler.observe(plan, seconds)
        self.now += seconds
        committed = self.scheduler.commit(plan, results, self.now)
        self.naive.computed([(share.request, share.num_tokens - share.num_draft) for share in plan.scheduled])
        for outcome in committed:
            if outcome.num_accepted:
                self.naive.computed([(outcome.request, 1)] * outcome.num_accepted)
        self.naive.generated([(outcome.request, len(outcome.token_ids)) for outcome in committed])
        for share, result, outcome in zip(plan.answered, results, committed, strict=True):
            request, token_ids, reason = outcome.request, outcome.token_ids, outcome.finish_reason
            self.read.setdefault(request.request_id, []).extend(entry.rank for entry in result.prompt_logprobs)
            assert (len(token_ids) == share.samples) or (share.samples and (request.grammar or share.num_draft))
            assert outcome.num_accepted <= min(share.num_draft, len(token_ids))
            assert list(token_ids) == request.output_ids[len(request.output_ids) - len(token_ids) :]
            if reason is not None:
                assert (request.output_ids, reason) == expected_output(request)
                self._check_readings(request)
                self.finished[request.request_id] = request.output_ids
                del self.live[request.request_id]

    def _check_readings(self, request: Request) -> None:
        """Each token to be read was read once, whatever was computed twice."""
        wanted, scores = expected_readings(request), self.read.pop(request.request_id)
        if request.pooling is None:
            assert scores == wanted
        else:
            assert request.pooled is not None
            assert request.pooled.tolist() == [sum(wanted), len(wanted)]

    def fail(self) -> None:
        """A step that breaks down half-way; nothing is left of what it was to write."""
        self.pass_time(0)
        plan = self._plan()
        self.model.break_down(plan)
        hit = [share.request for share in plan.scheduled]
        assert self.scheduler.fail_step(plan) == hit
        for request in hit:
            del self.live[request.request_id]

    def run_out_of_memory(self) -> None:
        """A step that breaks down half-way, and is tried again with less."""
        self.pass_time(0)
        plan = self._plan()
        if not plan.scheduled:
            return
        self.model.run_out_of_memory(plan)
        budget, running = self.scheduler.limit.tokens, self.scheduler.running.keys()
        before = set(running)
        halved = self.scheduler.shrink_after_oom(plan)
        assert halved == (plan.num_tokens > 1)
        assert self.scheduler.limit.tokens == (plan.num_tokens // 2 if halved else budget)
        assert running <= before
        assert len(running) == min(len(before), self.scheduler.limit.tokens)

    def finish(self) -> None:
        """Nobody arrives any more; all that are here must get to their ends."""
        # The first by rank computes a token in each step, or soon. It can lose what it has only when one that goes
        # before it is admitted, which happens once for each of those.
        bound = 3 * sum(request.max_cached_tokens for request in self.live.values()) * (len(self.live) + 1)
        for _ in range(bound):
            if not self.live:
                return
            self.step()
            if self.live and (wakes_at := self.scheduler.wakes_at) is not None:
                self.now = max(self.now, wakes_at)
        assert not self.live, "some request starves"

    # -- what must hold of a step ------------------------------------------------------------------------------------

    def _plan(self) -> StepPlan:
        scheduler, before = self.scheduler, list(self.scheduler.running.values())
        known = {name: (list(request.token_ids), request.arrival) for name, request in self.live.items()}
        preemptions = scheduler.preemptor.num_preemptions
        limited = scheduler.policy.shares(before).keys()
        self.held.clear()
        self.planning = True
        plan = scheduler.schedule(self.now)
        self.planning = False
        self.trace.append({s.request.request_id: s.num_tokens - s.num_draft for s in plan.scheduled})
        joined = [request for request in scheduler.running.values() if request not in before]
        assert known == {name: (request.token_ids, request.arrival) for name, request in self.live.items()}
        assert len(plan.preempted) == scheduler.preemptor.num_preemptions - preemptions
        self._check_progress(plan, limited)
        self._check_preemption(plan, joined)
        self._check_watermark(joined)
        check_limits(plan, scheduler, joined)
        check_time(plan, scheduler, joined)
        if isinstance(self.naive, NaiveClasses):
            check_leftover(plan, scheduler, self.naive.classes, self.naive.class_of, self.naive.credit)
        check_holds(plan, self.tables, self.held, joined)
        check_swaps(plan, self.tables, self.live.values())
        check_drafts(plan, self.tables)
        self.batch.check(plan, scheduler, before, joined)
        self._check_isolation(plan)
        self._check_tables(plan)
        return plan

    def _check_tables(self, plan: StepPlan) -> None:
        """A plan says where the tokens up to a share's end are."""
        for table, share in zip(plan.block_tables.tolist(), plan.scheduled, strict=True):
            count = self.blocks_for(share.end)
            assert table[:count] == share.request.blocks[:count]
            assert set(table[count:]) <= {table[0]}

    def _check_progress(self, plan: StepPlan, limited: Collection[str]) -> None:
        scheduler = self.scheduler
        if not plan.scheduled:
            assert plan.swapped_out == plan.swapped_in == plan.imported == plan.preempted == (), (
                "nobody makes the copies of an empty plan"
            )
            assert not scheduler.running
            assert not self.live or (scheduler.wakes_at is not None and scheduler.wakes_at > self.now)
            return
        assert scheduler.wakes_at is None
        if self.config.batching_strategy == "continuous" and self.config.enable_chunked_prefill:
            # The decodes of a tenant that is ahead take turns, and its prompts come after others' new requests.
            others = [request for request in scheduler.running.values() if request.tenant not in limited]
            first = min(others, key=scheduler.policy.rank, default=None)
            # Leftover requests take turns.
            advances = first is None or first.request_id in self.trace[-1] or self._is_leftover(first)
            assert advances, "the first in rank does not advance"

    def _is_leftover(self, request: Request) -> bool:
        return isinstance(self.naive, NaiveClasses) and self.naive.is_leftover(request)

    def _check_preemption(self, plan: StepPlan, joined: list[Request]) -> None:
        assert not plan.preempted or self.config.batch_scheduler_policy != "guaranteed_no_evict"
        for victim in plan.preempted:
            assert victim.request_id in self.scheduler.waiting
            for request in joined:
                assert self.config.scheduling_policy in ("priority", "classes"), "admitted in a step that preempted"
                assert request is not victim
        for request in joined if plan.preempted else ():
            if self.config.request_classes:
                assert not self._is_leftover(request)
                assert any(self._is_leftover(victim) for victim in plan.preempted)
            else:
                assert any(request.priority < victim.priority for victim in plan.preempted), "in the place of its equal"

    def _check_watermark(self, joined: list[Request]) -> None:
        """Whoever joins leaves the others the blocks for their next tokens."""
        admission = self.scheduler._admission
        if joined and isinstance(admission, MaxUtilization):
            others = [request for request in self.scheduler.running.values() if request is not joined[-1]]
            ends = [min(len(r.token_ids) + admission.next_tokens, r.max_cached_tokens) for r in others]
            needed = sum(self.blocks_for(end) - len(r.blocks) for end, r in zip(ends, others, strict=True))
            # One that comes back with its keys and values may draft at once. It gives those blocks back after the step.
            needed -= max(0, len(joined[-1].blocks) - self.blocks_for(len(joined[-1].token_ids)))
            assert self.tables.pool.num_free >= needed

    def _check_isolation(self, plan: StepPlan) -> None:
        """What a request reads was written by its own tenant, where tenants share nothing."""
        arriving, separate = arriving_blocks(plan), self.tables.prefixes.per_tenant
        self.host_writer.update({host: self.writer[block] for block, host in plan.swapped_out})
        came_from = {block: self.host_writer[host] for host, block in plan.swapped_in}
        for share in plan.scheduled:
            request, first = share.request, share.request.num_computed // self.block_size
            end = self.blocks_for(request.num_computed + share.num_tokens)
            writers = {came_from[block] for block in request.blocks if block in came_from}
            assert not separate or writers <= {request.tenant}, "a host block is shared between tenants"
            for block in (*arriving.intersection(request.blocks), *request.blocks[first:end]):
                self.writer[block] = request.tenant
            writers = {self.writer[block] for block in request.blocks[:first]}
            assert not separate or writers <= {request.tenant}, "a block is shared between tenants"

    # -- what must hold between steps --------------------------------------------------------------------------------

    def check(self) -> None:
        self._check_blocks()
        self._check_host_blocks()
        self._check_queue()
        self._check_events()

    def _check_blocks(self) -> None:
        pool, running = self.tables.pool, self.scheduler.running.values()
        held = Counter(block for request in self.live.values() for block in request.blocks)
        assert pool.num_used + pool.num_free == pool.num_blocks
        assert pool.num_used == len(held)
        assert [held[block] for block in range(pool.num_blocks)] == pool._references
        assert pool.num_cached <= pool.num_free
        for request in running:
            assert len(request.blocks) >= self.blocks_for(request.num_computed)
            assert len(request.blocks) <= self.blocks_for(len(request.token_ids))
            assert request.num_uncomputed >= 1
            assert not request.host_blocks
            assert request.imported is None
        worst = sum(self.blocks_for(len(r.prompt_ids) + max(0, r.max_tokens - 1)) - len(r.blocks) for r in running)
        assert self.tables.num_promised == worst
        for request in self.scheduler.waiting:
            assert (request.blocks, request.num_computed) == ([], 0)

    def _check_host_blocks(self) -> None:
        space = self.tables.host
        held = [block for request in self.live.values() for block in request.host_blocks]
        prefixes = [*space._kept.values(), *space._arriving.values(), *space._reading.values()]
        assert sorted([*held, *prefixes, *space._free, *space._leaving]) == list(range(space.num_blocks))
        assert space.num_prefixes == len(prefixes)
        assert space.num_used == len(held)
        assert self.tables.prefixes.enabled or not prefixes
        for request in self.live.values():
            assert len(request.host_blocks) == self.blocks_for(request.num_swapped)

    def _check_queue(self) -> None:
        queue, running = self.scheduler.waiting, self.scheduler.running
        waiting = list(queue)
        assert _names(waiting) == _names(self.naive.order())
        assert running.keys() | set(_names(waiting)) == self.live.keys()
        assert len(queue) == len(waiting) == len(self.live) - len(running)
        assert queue.num_tokens == sum(len(request.token_ids) for request in waiting)
        for level in range(4):
            assert queue.count(level) == sum(request.priority == level for request in waiting)

    def _check_events(self) -> None:
        """Who follows the events knows exactly the blocks that anybody may reuse."""
        self.mirror.apply(self.recorded.take())
        unsalted = {name for request in self.unsalted for name in request.block_hashes}
        assert self.mirror.names == unsalted & self.tables.pool._block_of.keys()

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def _names(requests: Iterable[Request]) -> list[str]:
    return [request.request_id for request in requests]
