"""Machine seconds are shared among tenants, and none is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.core import EngineCore
from inflight.metric_families.families import FAMILIES
from inflight.scheduler.plan import StepPlan
from inflight.step_result import StepResult
from inflight.tenant_costs import MAX_TENANTS, OTHERS, TenantCosts
from tests.unit.builders import admit, commit, make_plan, make_request, make_scheduler, make_tables

PRICE = 7.2
REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=20)


class Machine:
    """A core with prices, whose steps take time by their tokens."""

    def __init__(self) -> None:
        self.now = self.spent = 0.0
        scheduler = make_scheduler(400, price_per_hour=PRICE, prefix_caching=False)
        self.core = EngineCore(scheduler, self, max_queue_size=1000, clock=lambda: self.now)

    def run(self, plan: StepPlan) -> list[StepResult]:
        """The runner's part."""
        seconds = 0.01 + 0.001 * plan.num_tokens
        self.now += seconds
        self.spent += seconds
        return [StepResult((7,))] * len(plan.answered)

    def drain(self) -> None:
        while self.core.has_work:
            self.core.step()


@given(REQUESTS)
@settings(deadline=None)
def test_the_seconds_of_tenants_are_those_of_the_steps(requests: list[tuple[str, int, int]]) -> None:
    machine = Machine()
    for number, (tenant, prompt, output) in enumerate(requests):
        machine.core.submit(make_request(f"{number}", prompt, max_tokens=output, tenant=tenant))
    machine.drain()
    use = machine.core.stats().tenants
    assert sum(each.seconds for each in use.values()) == pytest.approx(machine.spent)
    for tenant, each in use.items():
        own = [(prompt, output) for name, prompt, output in requests if name == tenant]
        assert each.prompt_tokens == sum(prompt for prompt, _ in own)
        assert each.output_tokens == sum(output for _, output in own)


def test_a_step_is_split_by_what_each_request_adds() -> None:
    tables = make_tables(64)
    long, short = make_request("long", 30, tenant="long"), make_request("short", 10, tenant="short")
    for request in (long, short):
        admit(tables, request)
    costs = TenantCosts()
    costs.charge(make_plan((long, 30), (short, 10)), (0.0, 1.0, 0.0, 0.0), 4.0)
    assert {name: use.prompt_seconds for name, use in costs.by_tenant.items()} == {"long": 3.0, "short": 1.0}
    costs.charge(make_plan((long, 30), (short, 10)), (1.0, 0.0, 0.0, 0.0), 4.0)
    assert {name: use.prompt_seconds for name, use in costs.by_tenant.items()} == {"long": 5.0, "short": 3.0}


def test_what_is_computed_again_is_no_output() -> None:
    scheduler = make_scheduler(price_per_hour=PRICE, prefix_caching=False, budget=8)
    request = make_request("r", 4, max_tokens=30, tenant="a")
    scheduler.add(request)

    def seconds(steps: int) -> tuple[float, float]:
        for _ in range(steps):
            plan = scheduler.schedule(0.0)
            scheduler.observe(plan, 1.0)
            commit(scheduler, plan, [7] * len(plan.sampling))
        assert scheduler.costs is not None
        use = scheduler.costs.by_tenant["a"]
        return use.prompt_seconds, use.output_seconds

    assert seconds(13) == (1.0, 12.0)
    scheduler.preemptor.preempt(request)
    assert seconds(2) == (3.0, 12.0), "all but the newest of its 17 tokens"
    assert seconds(1) == (3.0, 13.0)


def test_the_number_of_accounts_is_bounded() -> None:
    machine = Machine()
    for number in range(MAX_TENANTS + 20):
        machine.core.submit(make_request(f"{number}", 1, max_tokens=1, tenant=f"tenant {number}"))
    machine.drain()
    use = machine.core.stats().tenants
    assert len(use) == MAX_TENANTS + 1
    assert use[OTHERS].output_tokens == 20
    assert sum(each.seconds for each in use.values()) == pytest.approx(machine.spent)


def test_metrics_show_what_tenants_cost() -> None:
    machine = Machine()
    for number in range(6):
        machine.core.submit(make_request(f"{number}", 10, max_tokens=5, tenant="ab"[number % 2]))
    machine.drain()
    stats = machine.core.stats()
    shown = {family.name: family.read(stats) for family in FAMILIES if family.read is not None}
    costs = shown["inflight:tenant_cost_total"]
    assert costs.keys() == {"a", "b"}
    assert sum(costs.values()) == pytest.approx(machine.spent * PRICE / 3600)
    per_thousand = shown["inflight:cost_per_thousand_tokens"]
    assert per_thousand["total"] == pytest.approx(1e3 * sum(costs.values()) / 30)
    by_kind = per_thousand["prompt"] * 60 / 1e3 + per_thousand["output"] * 30 / 1e3
    assert by_kind == pytest.approx(sum(costs.values()))


def test_without_a_price_nothing_is_counted() -> None:
    scheduler = make_scheduler()
    assert scheduler.costs is None
    stats = EngineCore(scheduler, Machine(), max_queue_size=10).stats()
    assert not any(
        family.read(stats)
        for family in FAMILIES
        if family.read is not None and ("tenant_" in family.name or "cost_" in family.name)
    )
