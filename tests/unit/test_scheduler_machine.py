"""Every scheduler that can be configured, under random requests, priorities, time limits, cancellations, failures."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflight.scheduler.admission import MaxUtilization
from inflight.scheduler.output_lengths.tenant_quantiles import TenantQuantiles
from inflight.scheduler.output_lengths.watched import Watched
from inflight.scheduler.policies import fair
from inflight.scheduler.policies.fair import Fair
from inflight.scheduler.queue_policy import DELAY, QueuePolicies, QueuePolicy
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.scheduler_config import (
    ADMISSION_POLICIES,
    BATCHING_STRATEGIES,
    LENGTH_PREDICTORS,
    PREEMPTION_MODES,
    SCHEDULING_POLICIES,
    TOKEN_BUDGETS,
)
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_drafter import FakeDrafter
from tests.unit.fake_model import VOCABULARY, FakeModel
from tests.unit.world import World

TOKENS = st.integers(0, VOCABULARY - 1)
# Prompts begin alike, so that prefixes are shared, and end in any way.
STEMS = [list(range(7)) * 2, [3] * 14, [3] * 6 + [1] * 8]
PROMPTS = st.builds(
    lambda stem, length, tail: STEMS[stem][:length] + tail,
    st.integers(0, len(STEMS) - 1),
    st.integers(0, 14),
    st.lists(TOKENS, min_size=1, max_size=5),
)

OVERRIDE = QueuePolicy(allow_timeout_override=True)
# Level 2 rejects what waits for more than 20 ms, level 3 delays it soon; the others heed only what a request brings.
LEVELS = QueuePolicies(
    OVERRIDE,
    priority_levels=3,
    default_priority_level=2,
    by_level={
        2: QueuePolicy(default_timeout_microseconds=20_000),
        3: QueuePolicy(default_timeout_microseconds=3000, timeout_action=DELAY),
    },
)
ONE_LEVEL = QueuePolicies(OVERRIDE)

# Powers of two, so that sums are exact however they are grouped.
CLASSES: list[dict[str, Any]] = [
    {"chat": {"target_itl_ms": 1.0, "target_ttft_ms": 20.0}, "night": {"tenants": ["a"], "leftover": True}},
    {
        "chat": {"share": 4.0, "priorities": [1]},
        "batch": {"policy": "sjf", "tenants": ["b"]},
        "night": {"leftover": True, "min_share": 0.25},
        "dawn": {"leftover": True, "policy": "fair", "share": 2.0, "priorities": [3, 4]},
    },
    {"chat": {"policy": "slo", "target_ttft_ms": 2.0}, "batch": {"policy": "fair", "share": 0.5}},
]

SETTINGS = st.fixed_dictionaries(
    {
        "cache_tokens": st.integers(24, 64),
        "block_size": st.sampled_from([1, 2, 3, 4, 4, 16]),
        "budget": st.sampled_from([1, 3, 8, 20, 64]),
        "max_num_seqs": st.sampled_from([1, 2, 4, 4, 8, 8]),
        "prefix_caching": st.booleans(),
        "per_tenant": st.booleans(),
        "policies": st.sampled_from([ONE_LEVEL, LEVELS]),
        "batching_strategy": st.sampled_from([BATCHING_STRATEGIES[0], *BATCHING_STRATEGIES]),
        "batch_wait_ms": st.sampled_from([0.0, 2.0, 1000.0]),
        "scheduling_policy": st.sampled_from([*SCHEDULING_POLICIES, "classes"]),
        "request_classes": st.sampled_from(CLASSES),
        "length_predictor": st.sampled_from(LENGTH_PREDICTORS),
        "sjf_ageing": st.sampled_from([0.0, 1000.0]),
        "priority_ageing_seconds": st.sampled_from([0.0, 0.003, 30.0]),
        "tenant_weights": st.sampled_from([{}, {"a": 3.0, "b": 0.5}]),
        "target_ttft_ms": st.sampled_from([1.0, 8.0]),
        "shed_lost_requests": st.booleans(),
        "batch_scheduler_policy": st.sampled_from([ADMISSION_POLICIES[0], *ADMISSION_POLICIES]),
        "next_tokens": st.sampled_from([0, 3, MaxUtilization.next_tokens]),
        "arrival_forecast_ms": st.sampled_from([0.0, 2.0, 100.0]),
        "preemption_mode": st.sampled_from(["swap", *PREEMPTION_MODES]),
        "swap_space_tokens": st.sampled_from([8, 40, 80]),
        "swap_seconds_per_block": st.sampled_from([0.0, 0.001]),
        "enable_chunked_prefill": st.booleans(),
        "max_num_partial_prefills": st.sampled_from([0, 0, 1, 2]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 1, 4]),
        "token_budget": st.sampled_from(TOKEN_BUDGETS),
        "target_itl_ms": st.sampled_from([None, 0.1, 2.0]),
        "scheduler_delay_factor": st.sampled_from([0.0, 0.0, 2.0]),
        "drafts": st.sampled_from(["", "", "ngram", "suffix", *FakeDrafter.KINDS]),
        "num_speculative_tokens": st.sampled_from([1, 3, 10]),
        "adaptive": st.booleans(),
        # Seconds of a step, of a token, of a cached token that is read, and of a pair of a query and a key.
        "step_seconds": st.sampled_from([(0.0, 0.0, 0.0, 0.0), (1e-4, 2e-5, 1e-6, 1e-6), (1e-3, 0.0, 0.0, 0.0)]),
    }
)


def go_together(sizes: dict[str, Any]) -> dict[str, Any]:
    """The nearest settings that a scheduler takes."""
    policies = {"priority": LEVELS, "fair": ONE_LEVEL}
    sizes = sizes | {"policies": policies.get(sizes["scheduling_policy"], sizes["policies"])}
    foresees = sizes["batch_scheduler_policy"] == "max_utilization" and sizes["scheduling_policy"] != "classes"
    if sizes["policies"] is ONE_LEVEL or not foresees:
        sizes |= {"arrival_forecast_ms": 0.0}
    if sizes["scheduling_policy"] != "classes":
        sizes |= {"request_classes": {}}
    elif any(each.get("leftover") for each in sizes["request_classes"].values()):
        sizes |= {"batching_strategy": "continuous", "enable_chunked_prefill": True}
    speculation = {name: sizes.pop(name) for name in ("num_speculative_tokens", "adaptive")}
    if sizes["drafts"]:
        method = "suffix" if sizes["drafts"] == "suffix" else "ngram"
        sizes["speculative_config"] = {"method": method, "prompt_lookup_min": 1, **speculation}
    return sizes | {"num_blocks": -(-sizes.pop("cache_tokens") // sizes["block_size"])}


@pytest.fixture(autouse=True, scope="module")
def tenants_are_soon_ahead() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair, "_WINDOW", 60.0)
        yield


def known_lengths(scheduler: Scheduler) -> list[int]:
    """The output lengths that the scheduler has learned from."""
    lengths = scheduler.lengths
    tenants = lengths._tenants if isinstance(lengths, Watched) else lengths
    assert isinstance(tenants, TenantQuantiles)
    return tenants._all._sorted


class SchedulerMachine(RuleBasedStateMachine):
    world: World

    @initialize(sizes=SETTINGS.map(go_together))
    def begin(self, sizes: dict[str, Any]) -> None:
        self.sizes = sizes
        self.history: list[Callable[[World], None]] = []
        self.world = World(sizes)

    def do(self, operation: Callable[[World], None]) -> None:
        self.history.append(operation)
        operation(self.world)

    @rule(
        prompts=st.lists(PROMPTS, min_size=2, max_size=8),
        max_tokens=st.integers(1, 24),
        min_tokens=st.sampled_from([0, 6, 24]),
        stops=st.lists(TOKENS, max_size=1),
        reads=st.sampled_from(["", "", "", "scores", "scores alone", "last", "mean"]),
        priority=st.integers(0, 4),
        timeout=st.sampled_from([0, 0, 0, 3000, 20_000]),
        deadline_ms=st.sampled_from([None, None, None, 5, 30]),
        tenant=st.sampled_from(["", "a", "b"]),
        request_class=st.sampled_from(["", "", "chat", "batch", "night", "unknown"]),
        target_ttft_ms=st.sampled_from([None, None, 2, 100]),
        guided=st.booleans(),
        imports=st.sampled_from([0, 0, 3, 16, 1000]),
        imports_from=st.sampled_from([0, 0, 1, 3]),
    )
    def add(
        self,
        prompts: list[list[int]],
        max_tokens: int,
        min_tokens: int,
        stops: list[int],
        reads: str,
        **limits: Any,
    ) -> None:
        for prompt in prompts:
            self.do(lambda world, prompt=prompt: world.add(prompt, max_tokens, min_tokens, stops, reads, **limits))

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
            self.everything_adds_up()

    @precondition(lambda self: self.world.live)
    @rule(luck=st.integers(0, 3))
    def fail_a_step(self, luck: int) -> None:
        self.do(World.step if luck else World.fail)

    @precondition(lambda self: self.world.live and self.world.scheduler.limit.tokens > 1)
    @rule(luck=st.integers(0, 7))
    def run_out_of_memory(self, luck: int) -> None:
        self.do(World.step if luck else World.run_out_of_memory)

    @invariant()
    def everything_adds_up(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.do(World.finish)
        self.world.check()
        assert self.world.tables.pool.num_used == 0
        self.replayed(self.sizes)
        if self.sizes["drafts"] == "wrong" and self.knows_no_times():
            self.wrong_drafts_leave_no_trace()

    def replayed(self, sizes: dict[str, Any]) -> World:
        again = World(sizes)
        for operation in self.history:
            operation(again)
        assert again.trace == self.world.trace
        assert again.finished == self.world.finished
        return again

    def knows_no_times(self) -> bool:
        """Whether it is the same to the scheduler how many tokens a step had."""
        sizes = self.sizes
        timeless = sizes["token_budget"] == "fixed" and sizes["scheduling_policy"] not in ("slo", "classes")
        alike = sizes["preemption_mode"] != "auto" and not any(sizes["step_seconds"][1:])
        return timeless and alike and World.run_out_of_memory not in self.history

    def wrong_drafts_leave_no_trace(self) -> None:
        plain = self.replayed(self.sizes | {"drafts": "", "speculative_config": {}}).scheduler
        drafting = self.world.scheduler
        assert plain.tables.pool.num_cached == drafting.tables.pool.num_cached
        assert plain.preemptor.num_preemptions == drafting.preemptor.num_preemptions
        assert known_lengths(plain) == known_lengths(drafting)
        if isinstance(plain.policy, Fair) and isinstance(drafting.policy, Fair):
            assert plain.policy.service == drafting.policy.service
            assert plain.policy._recent == drafting.policy._recent


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(settings.get_profile("unit"), max_examples=220, stateful_step_count=40)


def fair_world() -> World:
    sizes = {"num_blocks": 64, "block_size": 1, "budget": 8, "max_num_seqs": 8, "prefix_caching": False}
    policy = {"scheduling_policy": "fair", "tenant_weights": {"a": 3.0, "b": 0.5}}
    return World({**sizes, **policy, "step_seconds": (1e-3, 0.0, 0.0, 0.0), "drafts": ""})


def test_the_prompt_of_a_tenant_that_is_ahead_waits_for_new_requests_of_others() -> None:
    world = fair_world()
    for tokens, tenant in ((24, "b"), (8, "a"), (8, "a"), (8, "a")):
        world.add([1] * tokens, 1, 0, [], "", guided=False, tenant=tenant)
        world.step()
    assert [list(step.values()) for step in world.trace] == [[8]] * 4
    first = next(iter(world.scheduler.running.values()))
    assert (first.tenant, first.num_computed) == ("b", 16)
    world.finish()


def test_the_decodes_of_a_tenant_that_is_ahead_take_turns() -> None:
    world = fair_world()
    for tenant in "bbbba":
        world.add([1], 12, 12, [], "", guided=False, tenant=tenant)
    for _ in range(6):
        world.step()
    *ahead, _ = world.live.values()
    assert sorted({len(step) for step in world.trace}) == [2, 5]
    assert {len(request.output_ids) for request in ahead} == {3}
    world.finish()


@pytest.mark.parametrize("spoiled", ["num_computed", "blocks"])
def test_the_fake_model_notices_a_mix_up(spoiled: str) -> None:
    """The machine is only worth what the model that it drives can see."""
    scheduler, model = make_scheduler(block_size=2, budget=4), FakeModel(2)
    for name in "ab":
        scheduler.add(make_request(name, [1, 2, int(name == "b")], max_tokens=3))
    for _ in range(2):
        plan = scheduler.schedule(0.0)
        scheduler.commit(plan, model.run(plan), 0.0)
    first, second = scheduler.running.values()
    if spoiled == "blocks":
        scheduler.tables._array.put(first.slot, 1, [second.blocks[1]])
    else:
        first.num_computed += 1
        first.token_ids.append(0)
    with pytest.raises(AssertionError, match="other tokens"):
        model.run(scheduler.schedule(0.0))
