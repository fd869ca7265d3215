"""Classes of requests: who belongs to which, and what leftover work may have."""

from collections import deque
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.scheduler.policies.classes import CREDIT, STRETCH
from inflight.scheduler.scheduler import Scheduler
from tests.unit.builders import commit, make_request, make_scheduler, shares, waiting

NIGHT: dict[str, Any] = {"chat": {}, "night": {"leftover": True}}
COSTS = 0.010, 0.0001, 1e-7, 1e-8
"""Seconds of a step, of a token, of a cached token, and of a pair of a query and a key."""


def by_class(classes: dict[str, Any] = NIGHT, **sizes: Any) -> Scheduler:
    return make_scheduler(scheduling_policy="classes", request_classes=classes, prefix_caching=False, **sizes)


def of_class(name: str, request_id: str, prompt: int = 4, max_tokens: int = 4, **options: Any) -> Request:
    return make_request(
        request_id, prompt, max_tokens=max_tokens, options=RequestOptions(request_class=name, **options)
    )


def seconds_of(scheduled: list[ScheduledRequest]) -> float:
    a, b, c, d = COSTS
    tokens = sum(each.num_tokens for each in scheduled)
    return a + sum(b * e.num_tokens + c * e.first + d * e.num_pairs for e in scheduled) if tokens else 0.0


class Machine:
    """A scheduler on a machine whose steps take what the model of step times says."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        a, b, c, d = COSTS
        draw = Random(0)
        for _ in range(200):  # The model is known from here on, to a hundredth of a percent.
            tokens, cached, pairs = draw.randint(1, 256), draw.randint(0, 4000), draw.randint(0, 60_000)
            scheduler.times.observe(tokens, cached, pairs, a + b * tokens + c * cached + d * pairs)

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule(self.now)
        self.now += seconds_of(list(plan.scheduled))
        commit(self.scheduler, plan, [7] * len(plan.sampling), self.now)
        return plan


# -- who belongs to which class ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "priority", "name"),
    [
        ({}, 0, "chat"),
        ({"tenant": "nobody", "priority": 9}, 0, "chat"),
        ({"priority": 3}, 0, "batch"),
        ({}, 3, "batch"),
        ({"priority": 3, "tenant": "nightly"}, 0, "night"),
        ({"priority": 3, "tenant": "nightly", "request_class": "chat"}, 0, "chat"),
    ],
)
def test_a_request_names_its_class_or_its_tenant_has_one_or_its_priority(
    options: dict[str, Any], priority: int, name: str
) -> None:
    classes = {"chat": {}, "batch": {"priorities": [3]}, "night": {"tenants": ["nightly"], "leftover": True}}
    request = make_request("r", options=RequestOptions(**options), priority=priority)
    by_class(classes).add(request)
    assert (request.class_name, request.is_leftover) == (name, name == "night")


def test_each_class_has_its_own_order() -> None:
    scheduler = by_class({"chat": {}, "batch": {"policy": "sjf", "share": 0.5}})
    for number, prompt in enumerate((9, 5, 7)):
        scheduler.add(of_class("chat", f"chat{number}", prompt))
        scheduler.add(of_class("batch", f"batch{number}", prompt))
    assert waiting(scheduler) == ["chat0", "chat1", "chat2", "batch1", "batch2", "batch0"]


# -- leftover work -----------------------------------------------------------------------------------------------------


def test_leftover_requests_wait_behind_all_others() -> None:
    scheduler = by_class()
    for name in ("night", "chat", "night", "chat"):
        scheduler.add(of_class(name, f"{name}{len(scheduler.waiting)}"))
    assert waiting(scheduler) == ["chat1", "chat3", "night0", "night2"]


@pytest.mark.parametrize("sizes", [{"max_num_seqs": 4}, {"num_blocks": 12}])
def test_leftover_requests_give_their_room_to_as_many_others_as_come(sizes: dict[str, int]) -> None:
    machine = Machine(by_class({"chat": {"target_ttft_ms": 1e6}, "night": {"leftover": True}}, **sizes))
    for number in range(4):
        machine.scheduler.add(of_class("night", f"night{number}", max_tokens=9))
    while len(machine.scheduler.running) < 4 - ("num_blocks" in sizes):
        machine.step()
    before = list(machine.scheduler.running)
    for number in range(2):
        machine.scheduler.add(of_class("chat", f"chat{number}", 7))
    plan = machine.step()
    assert {"chat0", "chat1"} <= shares(plan).keys()
    assert [victim.request_id for victim in plan.preempted] == before[::-1][: len(plan.preempted)], "the newest first"


TARGETS = st.fixed_dictionaries(
    {}, optional={"target_itl_ms": st.floats(5, 40), "target_ttft_ms": st.floats(200, 1000)}
)


@settings(max_examples=60)
@example({}, 403, 0.0, "fixed")  # A short prompt beside no decode.
@given(TARGETS, st.integers(0, 2**32), st.sampled_from([0.0, 0.0, 0.1]), st.sampled_from(["fixed", "adaptive"]))
def test_leftover_work_takes_only_what_the_targets_leave(
    targets: dict[str, float], seed: int, min_share: float, token_budget: str
) -> None:
    """Any step: it ends in time, or would be as long without leftover work, or has but a few tokens of it."""
    draw = Random(seed)
    classes = {"chat": targets, "night": {"leftover": True, "min_share": min_share}}
    machine = Machine(by_class(classes, num_blocks=400, max_num_seqs=24, budget=256, token_budget=token_budget))
    most = 0
    for number in range(120):
        if draw.random() < (0.3 if number // 30 % 2 else 0.0):
            machine.scheduler.add(of_class("chat", f"chat{number}", draw.randint(1, 200), draw.randint(1, 30)))
        if len(machine.scheduler.waiting) < 5:
            machine.scheduler.add(of_class("night", f"night{number}", draw.randint(1, 200), draw.randint(1, 60)))
        plan = machine.step()
        others = [each for each in plan.scheduled if not each.request.is_leftover]
        decodes = [each for each in others if each.num_tokens == 1]
        leftover = plan.num_tokens - sum(each.num_tokens for each in others)
        longest = targets.get("target_itl_ms", 1e3 * STRETCH * seconds_of(decodes)) / 1e3
        if not others:
            longest = targets.get("target_ttft_ms", 1000.0) / 1e4
        in_time = seconds_of(list(plan.scheduled)) <= max(longest, seconds_of(others)) * (1 + 1e-4)
        assert in_time or not leftover or leftover <= (64 if min_share else 0 if others else 16)
        most = max(most, leftover)
    assert most > 16, "the background got something"


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.2, 0.4]), st.sampled_from([24, 48, 96]))
def test_a_minimum_share_is_kept_however_busy_the_others_are(seed: int, min_share: float, budget: int) -> None:
    draw = Random(seed)
    classes = {"chat": {"target_itl_ms": 0.1}, "night": {"leftover": True, "min_share": min_share}}
    machine = Machine(by_class(classes, num_blocks=200, budget=budget))
    service = {True: 0.0, False: 0.0}
    came: list[Request] = []
    for number in range(500):
        for name in ("chat", "night"):
            if sum(r.is_leftover == (name == "night") for r in machine.scheduler.waiting) < 4:
                request = of_class(name, f"{name}{number}", draw.randint(1, 40), draw.randint(1, 10))
                machine.scheduler.add(request)
                came += [request] * (name == "night" and number < 50)
        for each in machine.step().scheduled:
            service[each.request.is_leftover] += 2 if each.num_tokens == 1 else each.num_tokens
    assert service[True] >= min_share * sum(service.values()) - 2 * CREDIT
    assert all(request.num_output == request.max_tokens for request in came), "each of them finishes"


def test_without_a_minimum_share_leftover_work_waits_for_a_gap() -> None:
    machine = Machine(by_class({"chat": {"target_itl_ms": 0.1}, "night": {"leftover": True}}))
    machine.scheduler.add(of_class("night", "night"))
    machine.scheduler.add(of_class("chat", "chat", max_tokens=20))
    for _ in range(20):
        assert shares(machine.step()).keys() == {"chat"}
    assert shares(machine.step()).keys() == {"night"}


@pytest.mark.parametrize("min_share", [0.0, 0.25])
def test_a_leftover_request_gets_on_whatever_a_grammar_forces(min_share: float) -> None:
    """What is forced after the third token takes longer than a step of leftover work may."""
    night = {"leftover": True, **({"min_share": min_share} if min_share else {})}
    machine = Machine(by_class({"chat": {"target_ttft_ms": 100.0}, "night": night}, num_blocks=256, budget=256))
    request = of_class("night", "night", max_tokens=400)
    request.grammar = LongRun()  # type: ignore[assignment]
    machine.scheduler.add(request)
    for _ in range(300):
        plan = machine.step()
        assert plan.scheduled
        if not machine.scheduler.running:
            break
    assert request.output_ids == [7] * 400


class LongRun:
    """A grammar that forces 300 tokens after the third one."""

    ended, error = False, None

    def __init__(self) -> None:
        self.forced: deque[int] = deque()
        self._accepted = 0

    def accept(self, token_id: int) -> None:
        self._accepted += 1
        if self.forced:
            self.forced.popleft()
        elif self._accepted == 3:
            self.forced.extend([7] * 300)
