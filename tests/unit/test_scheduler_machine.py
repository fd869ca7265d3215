"""The scheduler and the cache under random requests, priorities, time limits, cancellations and failed steps."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.queue_policy import QueuePolicies, QueuePolicy
from inflight.scheduler.scheduler import Scheduler
from tests.unit.builders import make_request, make_scheduler, shares
from tests.unit.fake_model import VOCABULARY, FakeModel, expected_output

TOKENS = st.integers(0, VOCABULARY - 1)
# Prompts begin alike, so that prefixes are shared, and end in any way.
STEMS = [list(range(7)) * 2, [3] * 14, [3] * 6 + [1] * 8]
PROMPTS = st.builds(
    lambda stem, length, tail: STEMS[stem][:length] + tail,
    st.integers(0, len(STEMS) - 1),
    st.integers(0, 14),
    st.lists(TOKENS, min_size=1, max_size=5),
)

# Level 2 rejects what waits for more than 4 ms; the others heed only what a request brings.
POLICIES = QueuePolicies(
    QueuePolicy(allow_timeout_override=True),
    priority_levels=3,
    default_priority_level=2,
    by_level={2: QueuePolicy(default_timeout_microseconds=4000)},
)


class World:
    """A scheduler with a model, and what is known of every request added."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        self.block_size: int = sizes["block_size"]
        self.budget: int = sizes["budget"]
        self.max_num_seqs: int = sizes["max_num_seqs"]
        self.scheduler: Scheduler = make_scheduler(**sizes)
        self.model = FakeModel(self.block_size)
        self.live: dict[str, Request] = {}
        """Unfinished requests in order of arrival."""
        self.now = 0.0
        self.trace: list[dict[str, int]] = []
        self.finished: dict[str, list[int]] = {}

    def add(self, prompt: list[int], max_tokens: int, min_tokens: int, stops: list[int], **limits: Any) -> None:
        name = f"r{len(self.trace)}-{len(self.live)}-{len(self.finished)}"
        request = make_request(
            name,
            prompt,
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            stop_token_ids=stops,
            arrival=self.now,
        )
        self.scheduler.policies.apply(request, **limits)
        blocks = -(-(len(prompt) + max_tokens - 1) // self.block_size)
        assert self.scheduler.fits(request) == (blocks <= self.scheduler.tables.pool.num_blocks)
        if self.scheduler.fits(request) and name not in self.live:
            self.scheduler.add(request)
            self.live[name] = request

    def cancel(self, number: int) -> None:
        name = list(self.live)[number % len(self.live)]
        assert self.scheduler.remove(name) is self.live.pop(name)

    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds / 1000
        for request, reason, message in self.scheduler.expire(self.now):
            assert self.live.pop(request.request_id) is request
            waited_too_long = request.wait_until is not None and request.wait_until <= self.now
            out_of_time = request.deadline is not None and request.deadline <= self.now
            if reason == "expired":
                assert message
                assert waited_too_long or out_of_time
                assert request.token_ids == request.prompt_ids
            else:
                assert (reason, message) == ("deadline", None)
                assert out_of_time
        for request in self.live.values():
            assert request.deadline is None or request.deadline > self.now
        for request in self.scheduler.waiting:
            assert request.num_preemptions or request.wait_until is None or request.wait_until > self.now

    def ranked(self, requests: Iterable[Request]) -> list[str]:
        """By priority, then by arrival."""
        arrivals = list(self.live)
        ranks = sorted((request.priority, arrivals.index(request.request_id)) for request in requests)
        return [arrivals[arrival] for _, arrival in ranks]

    def step(self) -> None:
        plan = self._plan()
        tokens, _ = self.model.run(plan)
        for request, reason in self.scheduler.commit(plan, tokens):
            if reason is not None:
                output = request.token_ids[len(request.prompt_ids) :]
                assert (output, reason) == expected_output(request)
                self.finished[request.request_id] = output
                del self.live[request.request_id]

    def fail(self) -> None:
        plan = self._plan()
        self.model.break_down(plan)
        for share in plan.scheduled:
            name = share.request.request_id
            assert self.scheduler.remove(name) is self.live.pop(name)

    def _plan(self) -> StepPlan:
        preemptions, before = self.scheduler.num_preemptions, set(self.scheduler.running)
        first = self.ranked(self.scheduler.running.values() or self.live.values())[:1]
        plan = self.scheduler.schedule(0.0)
        self.trace.append(shares(plan))
        assert bool(plan.scheduled) == bool(self.live)
        assert plan.num_tokens <= self.budget
        assert len(plan.scheduled) <= len(self.scheduler.running) <= self.max_num_seqs
        assert len(self.trace[-1]) == len(plan.scheduled)
        assert all(1 <= share.num_tokens <= share.request.num_uncomputed for share in plan.scheduled)
        assert set(first) <= self.trace[-1].keys(), "the oldest request of the highest priority does not advance"
        if self.scheduler.num_preemptions > preemptions:
            assert set(self.scheduler.running) < before, "admitted in a step that preempted"
        return plan


class SchedulerMachine(RuleBasedStateMachine):
    world: World

    @initialize(
        sizes=st.fixed_dictionaries(
            {
                "num_blocks": st.integers(1, 12),
                "block_size": st.sampled_from([1, 2, 3, 4, 16]),
                "budget": st.sampled_from([1, 2, 3, 5, 8, 64]),
                "max_num_seqs": st.sampled_from([1, 2, 3, 4, 8]),
                "prefix_caching": st.booleans(),
            }
        )
    )
    def begin(self, sizes: dict[str, Any]) -> None:
        sizes = sizes | {"policies": POLICIES}
        self.sizes = sizes
        self.history: list[Callable[[World], None]] = []
        self.world = World(sizes)

    def do(self, operation: Callable[[World], None]) -> None:
        self.history.append(operation)
        operation(self.world)

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 8),
        min_tokens=st.integers(0, 8),
        stops=st.lists(TOKENS, max_size=2),
        priority=st.integers(0, 4),
        timeout_us=st.sampled_from([0, 0, 3000, 20_000]),
        deadline_ms=st.sampled_from([None, None, 2, 10]),
    )
    def add(self, prompt: list[int], max_tokens: int, min_tokens: int, stops: list[int], **limits: Any) -> None:
        self.do(lambda world: world.add(prompt, max_tokens, min_tokens, stops, **limits))

    @rule(milliseconds=st.integers(1, 5))
    def pass_time(self, milliseconds: int) -> None:
        self.do(lambda world: world.pass_time(milliseconds))

    @precondition(lambda self: self.world.live)
    @rule(number=st.integers(0, 20))
    def cancel(self, number: int) -> None:
        self.do(lambda world: world.cancel(number))

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.do(World.step)
            self.blocks_belong_to_whom_the_tables_say()

    @precondition(lambda self: self.world.live)
    @rule()
    def fail_a_step(self) -> None:
        self.do(World.fail)

    @invariant()
    def blocks_belong_to_whom_the_tables_say(self) -> None:
        scheduler = self.world.scheduler
        pool, size = scheduler.tables.pool, self.world.block_size
        held = Counter(block for request in self.world.live.values() for block in request.blocks)
        assert pool.num_used + pool.num_free == pool.num_blocks
        assert pool.num_used == len(held)
        assert [held[block] for block in range(pool.num_blocks)] == pool._references
        assert pool.num_cached <= pool.num_free
        for request in scheduler.running.values():
            assert len(request.blocks) >= -(-request.num_computed // size)
            assert len(request.blocks) <= -(-len(request.token_ids) // size)
            assert request.num_uncomputed >= 1
        for request in scheduler.waiting:
            assert (request.blocks, request.num_computed) == ([], 0)

    @invariant()
    def first_come_first_served_within_a_priority(self) -> None:
        scheduler, live = self.world.scheduler, self.world.live
        waiting = list(scheduler.waiting)
        assert [request.request_id for request in waiting] == self.world.ranked(waiting)
        for level in range(4):
            here = [r for r in (*scheduler.running.values(), *waiting) if r.priority == level]
            assert [r.request_id for r in here] == [name for name, r in live.items() if r.priority == level]
            assert scheduler.waiting.count(level) == sum(r.priority == level for r in waiting)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        # The first by rank computes at least a token in each step. It can lose what it has only when one of a higher
        # priority is admitted, which happens once for each of those.
        live = self.world.live.values()
        bound = sum(request.most_cached_tokens for request in live) * len(live)
        for _ in range(bound):
            if self.world.live:
                self.do(World.step)
        assert not self.world.live, "some request starves"
        assert self.world.scheduler.tables.pool.num_used == 0
        self.replays_alike()

    def replays_alike(self) -> None:
        again = World(self.sizes)
        for operation in self.history:
            operation(again)
        assert again.trace == self.world.trace
        assert again.finished == self.world.finished


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(settings.get_profile("unit"), max_examples=120, stateful_step_count=40)


@pytest.mark.parametrize("spoiled", ["num_computed", "blocks"])
def test_the_fake_model_notices_a_mix_up(spoiled: str) -> None:
    """The machine is only worth what the model that it drives can see."""
    scheduler, model = make_scheduler(block_size=2, budget=4), FakeModel(2)
    for name in "ab":
        scheduler.add(make_request(name, [1, 2, int(name == "b")], max_tokens=3))
    for _ in range(2):
        plan = scheduler.schedule(0.0)
        scheduler.commit(plan, model.run(plan)[0])
    first, second = scheduler.running.values()
    if spoiled == "blocks":
        first.blocks[1] = second.blocks[1]
    else:
        first.num_computed += 1
        first.token_ids.append(0)
    with pytest.raises(AssertionError, match="other tokens"):
        model.run(scheduler.schedule(0.0))
