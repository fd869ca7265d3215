"""Fair shares, as 'Fairness in Serving Large Language Models' (OSDI'24) proves them of virtual token counters."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inflight.request import Request
from inflight.scheduler.decode_turns import in_turn
from inflight.scheduler.plan import ScheduledRequest
from inflight.scheduler.policies import fair
from inflight.scheduler.policies.fair import Fair
from inflight.scheduler.policies.policy import Order
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.scheduler_config import BATCHING_STRATEGIES
from tests.unit.builders import commit, make_request, make_scheduler, step
from tests.unit.test_learned_times import observe, real_seconds

PROMPT_PRICE, OUTPUT_PRICE = 1, 2
LONGEST_PROMPT = 24

SIZES = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(10, 60),
        "block_size": st.sampled_from([1, 4]),
        "budget": st.sampled_from([1, 8, 40]),
        "max_num_seqs": st.integers(1, 12),
        "tenant_weights": st.fixed_dictionaries({}, optional={name: st.floats(0.25, 4) for name in "abc"}),
    }
)


class Shop:
    """A fair scheduler whose customers are counted by what they got, not by the scheduler's own counters."""

    def __init__(self, sizes: dict[str, Any], seed: int, policy: str = "fair") -> None:
        """With the policy `classes`, each tenant is a class."""
        self.weights = sizes["tenant_weights"]
        classes = {name: {"tenants": [name], "share": self.weights.get(name, 1.0)} for name in "abc"}
        self.scheduler = make_scheduler(
            **sizes,
            scheduling_policy=policy,
            request_classes=classes if policy == "classes" else {},
            batch_scheduler_policy="guaranteed_no_evict",
            prefix_caching=False,
        )
        self.tokens = sizes["num_blocks"] * sizes["block_size"]
        self._draw = Random(seed)
        self._number = 0
        self.service: Counter[str] = Counter()

    def backlog(self, tenants: str) -> None:
        """See to it that the tenants' requests never run out in the next step."""
        waiting = Counter(request.tenant for request in self.scheduler.waiting)
        for tenant in self._draw.sample(tenants, len(tenants)):
            for _ in range(2 * self.scheduler.config.max_num_seqs - waiting[tenant]):
                self.add(tenant)

    def add(self, tenant: str) -> None:
        self._number += 1
        prompt = self._draw.randint(1, min(LONGEST_PROMPT, self.tokens - 1))
        most = self._draw.randint(1, min(16, self.tokens + 1 - prompt))
        request = make_request(f"{tenant}{self._number}", prompt, max_tokens=most, tenant=tenant)
        assert self.scheduler.fits(request)
        self.scheduler.add(request)

    def step(self) -> None:
        before = set(self.scheduler.running)
        plan = self.scheduler.schedule(0.0)
        for share in plan.scheduled:
            request = share.request
            self.service[request.tenant] += PROMPT_PRICE * len(request.prompt_ids) * (request.request_id not in before)
            self.service[request.tenant] += OUTPUT_PRICE * share.samples
        self.no_room_is_wasted(plan.num_tokens)
        commit(self.scheduler, plan, [7] * len(plan.sampling))

    def no_room_is_wasted(self, tokens: int) -> None:
        config, first = self.scheduler.config, self.scheduler.waiting.first()
        if first is not None and tokens < config.max_num_batched_tokens:
            full = len(self.scheduler.running) == min(config.max_num_seqs, config.max_num_batched_tokens)
            running: list[Request] = [*self.scheduler.running.values(), first]
            blocks = sum(self.scheduler.tables.blocks_for(request.max_cached_tokens) for request in running)
            assert full or blocks > self.scheduler.tables.pool.num_blocks

    def lead(self) -> float:
        """By how much more `a` was served than `b`, each for its weight."""
        a, b = (self.service[tenant] / self.weights.get(tenant, 1.0) for tenant in "ab")
        return a - b

    def bound(self) -> float:
        """Of theorem 4.4. A step of a tenant's counter is its service by its weight, hence the smaller weight."""
        step_of_a_counter = max(PROMPT_PRICE * LONGEST_PROMPT, OUTPUT_PRICE * self.tokens)
        return 2 * step_of_a_counter / min(self.weights.get(tenant, 1.0) for tenant in "ab")


@pytest.mark.parametrize("policy", ["fair", "classes"])
@given(SIZES, st.integers(0, 2**32), st.sampled_from(["", "a", "b", "c", "ac"]), st.integers(0, 40))
def test_over_any_time_that_two_tenants_wait_their_service_is_alike(
    policy: str, sizes: dict[str, Any], seed: int, earlier: str, steps: int
) -> None:
    """Whoever was served alone before, neither it nor the one who comes has any credit or debt for that."""
    shop, draw = Shop(sizes, seed, policy), Random(seed)
    for _ in range(steps):
        shop.backlog(earlier)
        shop.step()
    leads = []
    for _ in range(150):
        shop.backlog("ab")
        if draw.random() < 0.1:
            shop.add("c")  # One that comes and goes.
        leads.append(shop.lead())
        shop.step()
    assert max(leads) - min(leads) <= shop.bound()


@pytest.mark.parametrize("policy", ["fair", "classes"])
@given(st.integers(0, 60), st.integers(1, 5), st.integers(0, 2**32))
def test_endless_new_tenants_pass_a_waiting_one_only_for_what_it_had_more(
    policy: str, had: int, waiting: int, seed: int
) -> None:
    """Each newcomer is a tenant of its own, as where a client names a new one for each session."""
    classes = {"all": {"policy": "fair"}} if policy == "classes" else {}
    scheduler, draw = make_scheduler(scheduling_policy=policy, request_classes=classes, max_num_seqs=2), Random(seed)
    served, number = 0, 0

    def run_step() -> list[str]:
        nonlocal served, number
        while len(scheduler.waiting) < waiting:
            number += 1
            scheduler.add(make_request(f"new{number}", 4, max_tokens=4, tenant=f"{draw.getrandbits(64):x}"))
        found = step(scheduler)
        served += sum(PROMPT_PRICE * count + OUTPUT_PRICE for count in found.values())
        return list(found)

    scheduler.add(make_request("first", 4, max_tokens=1 + had, tenant="known"))
    for _ in range(had + 20):
        run_step()
    scheduler.add(make_request("second", 4, max_tokens=4, tenant="known"))
    served = 0
    while "second" not in run_step():
        # What "known" had more than the others at most, for each that waits, and the requests that were there before.
        assert served <= (waiting + 1) * (OUTPUT_PRICE * (had + 1) + 4) + (waiting + 2) * 16


@given(SIZES, st.integers(0, 2**32))
def test_a_lone_tenant_is_served_as_if_there_were_no_policy(sizes: dict[str, Any], seed: int) -> None:
    shop = Shop(sizes, seed)
    plain = make_scheduler(**sizes, batch_scheduler_policy="guaranteed_no_evict", prefix_caching=False)
    for _ in range(20):
        shop.add("a")
    for request in list(shop.scheduler.waiting):
        plain.add(make_request(request.request_id, request.prompt_ids, max_tokens=request.max_tokens))
    while plain.waiting or plain.running:
        assert step(shop.scheduler) == step(plain)


def serve(scheduler: Scheduler, *names: str) -> None:
    for name in names:
        scheduler.add(make_request(name, 4, max_tokens=4, tenant=name[0]))


def test_a_flood_does_not_delay_the_one_request_of_another_tenant() -> None:
    scheduler = make_scheduler(scheduling_policy="fair", max_num_seqs=1)
    serve(scheduler, *(f"a{n}" for n in range(9)))
    for _ in range(8):
        step(scheduler)  # Two of the flood.
    serve(scheduler, "b")
    # Both have the same counter now; one more of the flood may come first, but no second.
    assert "b" in [next(iter(step(scheduler))) for _ in range(4 + 1)]


def test_weights_are_shares() -> None:
    scheduler = make_scheduler(scheduling_policy="fair", max_num_seqs=1, tenant_weights={"a": 3.0})
    serve(scheduler, *(f"a{n}" for n in range(60)), *(f"b{n}" for n in range(60)))
    served: Counter[str] = Counter()
    for _ in range(4 * 40):
        served.update(name[0] for name in step(scheduler))
    assert served == {"a": 120, "b": 40}


def test_time_without_a_request_gives_no_credit() -> None:
    scheduler = make_scheduler(scheduling_policy="fair", max_num_seqs=1)
    serve(scheduler, "b0", *(f"a{n}" for n in range(20)))
    for _ in range(4 * 11):
        step(scheduler)
    serve(scheduler, *(f"b{n}" for n in range(1, 10)))
    first = [next(iter(step(scheduler)))[0] for _ in range(4 * 8)][::4]
    assert sorted(first[:2]) == sorted(first[2:4]) == ["a", "b"], "they take turns at once"


def test_what_the_cache_held_costs_nothing() -> None:
    scheduler = make_scheduler(scheduling_policy="fair", budget=64)
    for name in ("a", "b"):
        scheduler.add(make_request(name, range(17), max_tokens=1, tenant=name))
        assert step(scheduler)
    assert scheduler.policy.service == {"a": 17 + 2, "b": 17 + 2 + 1 + 2}  # type: ignore[attr-defined]


def test_tenants_that_are_gone_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair, "_MANY_TENANTS", 100)
    scheduler = make_scheduler(scheduling_policy="fair", budget=64, num_blocks=400)
    for number in range(120):
        scheduler.add(make_request(f"{number}", [1], max_tokens=1, tenant=f"t{number}"))
        step(scheduler)
    assert len(scheduler.policy.service) <= 101  # type: ignore[attr-defined]


class FewRemembered(RuleBasedStateMachine):
    """Two levels of a queue, whose policy remembers the counters of only two absent tenants."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(fair, "_MANY_TENANTS", 2)
        self._policy = Fair({})
        self._orders = [self._policy.order(), self._policy.order()]
        self._waiting: list[tuple[Order, Request]] = []
        self._others: list[tuple[Order, Request]] = []
        """Requests that run, or that others pass."""
        self._count = 0

    def teardown(self) -> None:
        self._patch.undo()

    @rule(tenant=st.sampled_from("abcdefgh"), level=st.integers(0, 1))
    def comes(self, tenant: str, level: int) -> None:
        self._count += 1
        request = make_request(f"{tenant}{self._count}", [1], tenant=tenant)
        request.number = self._count
        self._orders[level].add(request, newcomer=True)
        self._waiting.append((self._orders[level], request))

    @precondition(lambda self: self._waiting)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        order, request = self._waiting.pop(data.draw(st.integers(0, len(self._waiting) - 1)))
        order.remove(request.request_id)
        self._others.append((order, request))

    @precondition(lambda self: self._others)
    @rule(data=st.data())
    def comes_back(self, data: st.DataObject) -> None:
        order, request = self._others.pop(data.draw(st.integers(0, len(self._others) - 1)))
        order.add(request)
        self._waiting.append((order, request))

    @precondition(lambda self: self._others)
    @rule(data=st.data(), count=st.integers(1, 9))
    def is_served(self, data: st.DataObject, count: int) -> None:
        _, request = data.draw(st.sampled_from(self._others))
        self._policy.generated([(request, count)])

    @invariant()
    def the_least_served_tenant_that_waits_is_next(self) -> None:
        for order in self._orders:
            assert order.first() == next(iter(order), None)

    @invariant()
    def no_waiting_tenant_is_forgotten(self) -> None:
        waiting = {request.tenant for _, request in self._waiting}
        assert waiting <= self._policy.service.keys()


test_tenants_are_forgotten_only_while_they_are_absent = FewRemembered.TestCase


def test_prompts_of_a_tenant_that_is_ahead_are_limited_where_others_run() -> None:
    policy = Fair({"b": 3.0})
    long, short = make_request("a1", 2000, tenant="a"), make_request("b1", 10, tenant="b")
    policy.computed([(long, 2000)])
    assert policy.shares([long, short]) == {}, "few tokens are no flood"
    policy.computed([(long, 20_000)])
    assert policy.shares([long]) == {}, "it is alone"
    assert policy.shares([long, short]) == {"a": fair._SHARES / 4}
    for _ in range(400):
        policy.computed([(short, 1)] * 50)
    assert policy.shares([long, short]) == {}, "b has caught up"


def test_endless_long_prompts_of_one_tenant_leave_the_others_most_of_the_time() -> None:
    """Nobody waits here, so the order of the queue alone would not help the others."""
    cost = (5e-3, 1e-4, 1e-7, 1e-9)

    def time_of_others(policy: str) -> float:
        scheduler = make_scheduler(
            5000,
            16,
            scheduling_policy=policy,
            token_budget="adaptive",
            max_num_seqs=64,
            budget=512,
            prefix_caching=False,
        )
        observe(scheduler.times, cost, 60)
        for i in range(15):
            scheduler.add(make_request(f"{i}", 20, max_tokens=4000, tenant=f"{i}"))
        seconds, tokens, number = 0.0, 0, 0
        while seconds < 60:
            if not any(request.tenant == "greedy" for request in scheduler.running.values()):
                number += 1
                scheduler.add(make_request(f"greedy{number}", 3000, max_tokens=1, tenant="greedy"))
            plan = scheduler.schedule(0.0)
            spent = real_seconds(cost, plan.num_tokens, plan.num_cached, plan.num_pairs)
            scheduler.observe(plan, spent)
            commit(scheduler, plan, [7] * len(plan.sampling))
            seconds += spent
            tokens += len(plan.sampling)
        return tokens / seconds

    assert time_of_others("fair") > 1.5 * time_of_others("fcfs")


@pytest.mark.parametrize("strategy", BATCHING_STRATEGIES)
def test_a_tenant_that_has_had_its_share_joins_no_step_without_tokens(strategy: str) -> None:
    scheduler = make_scheduler(
        4000,
        scheduling_policy="fair",
        token_budget="adaptive",
        batching_strategy=strategy,
        batch_wait_ms=0.0,
        enable_chunked_prefill=False,
        max_num_seqs=4,
        budget=64,
        prefix_caching=False,
    )
    now, was_limited = 0.0, False
    for number in range(2000):
        waiting = Counter(request.tenant for request in scheduler.waiting)
        if waiting["a"] < 3:
            scheduler.add(make_request(f"a{number}", 20 * (1 + number % 6), max_tokens=2, arrival=now, tenant="a"))
        if number % 20 == 0 and not waiting["b"]:
            scheduler.add(make_request(f"b{number}", 4, max_tokens=10, arrival=now, tenant="b"))
        plan = scheduler.schedule(now)
        was_limited |= "a" in scheduler.policy.shares(scheduler.running.values())
        assert plan.scheduled
        assert all(each.num_tokens for each in plan.scheduled)
        seconds = 1e-3 + 1e-4 * plan.num_tokens
        scheduler.observe(plan, seconds)
        now += seconds
        commit(scheduler, plan, [7] * len(plan.sampling), now)
    assert was_limited


def decodes(scheduler: Scheduler, steps: int) -> list[int]:
    """Run some steps, a second each, and return how many requests got a token in each."""
    counts = []
    for number in range(steps):
        plan = scheduler.schedule(float(number))
        commit(scheduler, plan, [7] * len(plan.sampling), float(number + 1))
        counts.append(len(plan.sampling))
    return counts


def with_many(**settings: Any) -> Scheduler:
    """A scheduler with 16 requests of a tenant, and a request of each of 8 others."""
    scheduler = make_scheduler(5000, 16, scheduling_policy="fair", budget=512, prefix_caching=False, **settings)
    for name, tenant in [*((f"many{i}", "many") for i in range(16)), *((f"{i}", f"{i}") for i in range(8))]:
        scheduler.add(make_request(name, 20, max_tokens=3000, tenant=tenant))
    return scheduler


def test_many_samples_of_one_tenant_take_turns_where_others_run() -> None:
    scheduler = with_many(max_num_seqs=64)
    counts = decodes(scheduler, 400)
    assert max(counts) == 16 + 8, "at first, what it has had is no flood"
    assert counts[-1] == 5 + 8, "twice a ninth of the 24"
    lengths = [len(r.token_ids) for r in scheduler.running.values() if r.tenant == "many"]
    assert max(lengths) - min(lengths) <= 1, "they take turns"


def test_a_tenant_that_holds_the_room_for_others_does_not_wait() -> None:
    assert decodes(with_many(max_num_seqs=17), 400)[-1] == 17


def test_one_of_the_requests_always_decodes() -> None:
    request = make_request("a1", 4, tenant="a")
    decode = ScheduledRequest.next_of(request, 4)
    assert in_turn([decode], {"a": 0.1}) == [decode]


class CountedWeights(dict[str, float]):
    """Weights that count how often one is asked for."""

    num_asked = 0

    def get(self, tenant: str, default: Any = None) -> Any:
        self.num_asked += 1
        return super().get(tenant, default)


def test_how_many_tenants_wait_does_not_lengthen_a_step() -> None:
    weights = CountedWeights(t1=2.0)
    policy = Fair(weights)
    order = policy.order()
    for number in range(1000):
        request = make_request(f"{number}", [1], tenant=f"t{number}")
        request.number = number
        order.add(request, newcomer=True)
    running = [make_request("runs", [1], tenant="t0"), make_request("alone", [1], tenant="alone")]
    policy.computed([(running[0], 20_000)])
    weights.num_asked = 0
    assert policy.shares(running) == {"t0": fair._SHARES / 1002}
    policy.generated([(running[0], 1)])
    order.remove("5")
    assert weights.num_asked < 10


def test_a_tenant_that_is_ahead_computes_its_prompts_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair, "_WINDOW", 30.0)
    scheduler = make_scheduler(
        54, 1, scheduling_policy="fair", tenant_weights={"a": 3.0}, budget=8, max_num_seqs=4, prefix_caching=False
    )

    def step() -> dict[str, int]:
        plan = scheduler.schedule(0.0)
        commit(scheduler, plan, [7] * len(plan.sampling))
        return {each.request.request_id: each.num_tokens for each in plan.scheduled}

    for name, length in (("first", 2), ("long", 17), ("short", 5)):
        scheduler.add(make_request(name, length, max_tokens=1))
    assert step() == {"first": 2, "long": 6}
    assert step() == {"long": 8}
    scheduler.add(make_request("other", 1, max_tokens=1, tenant="a"))
    assert scheduler.policy.shares([*scheduler.running.values(), scheduler.waiting.first()])
    assert step() == {"long": 3, "short": 5}
