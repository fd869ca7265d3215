"""When requests join: batches that run to their end, delays, long prompts, prefixes that others compute."""

import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.kv_cache.imported_blocks import ImportedBlocks
from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.queue_policy import QueuePolicies, QueuePolicy
from inflight.scheduler.scheduler import Scheduler
from tests.unit.builders import commit, make_request, make_scheduler, shares, step
from tests.unit.fake_model import FakeModel


def run_to_completion(strategy: str, *, slots: int = 3, **settings: Any) -> Scheduler:
    return make_scheduler(
        num_blocks=400, max_num_seqs=slots, batching_strategy=strategy, **({"batch_wait_ms": 50.0} | settings)
    )


def planned(scheduler: Scheduler, now: float) -> dict[str, int]:
    plan = scheduler.schedule(now)
    share = shares(plan)
    commit(scheduler, plan, [7] * len(plan.sampling))
    return share


@pytest.mark.parametrize("strategy", ["static", "dynamic", "bucketed"])
def test_a_batch_waits_until_it_is_full(strategy: str) -> None:
    scheduler = run_to_completion(strategy)
    for name in "ab":
        scheduler.add(make_request(name, 4, arrival=1.0))
    assert planned(scheduler, 1.01) == {}
    assert scheduler.wakes_at == 1.05
    scheduler.add(make_request("c", 4, arrival=1.02))
    assert planned(scheduler, 1.02) == {"a": 4, "b": 4, "c": 4}
    assert scheduler.wakes_at is None


@pytest.mark.parametrize("strategy", ["static", "dynamic", "bucketed"])
def test_or_until_its_first_request_has_waited_long_enough(strategy: str) -> None:
    scheduler = run_to_completion(strategy)
    scheduler.add(make_request("a", 4, arrival=1.0))
    assert planned(scheduler, 1.0) == {}
    assert scheduler.wakes_at is not None
    assert planned(scheduler, scheduler.wakes_at) == {"a": 4}


@pytest.mark.parametrize(
    ("policy", "limits"),
    [
        ("fcfs", {"options": RequestOptions(deadline_ms=20)}),
        ("fcfs", {"options": RequestOptions(timeout=20_000)}),
        ("slo", {"target_ttft_ms": 20}),
    ],
    ids=["deadline", "timeout", "target"],
)
def test_the_scheduler_wakes_when_the_time_of_a_waiting_request_is_up(policy: str, limits: dict[str, Any]) -> None:
    scheduler = run_to_completion(
        "static",
        scheduling_policy=policy,
        shed_lost_requests=True,
        policies=QueuePolicies(QueuePolicy(allow_timeout_override=True)),
    )
    request = make_request("a", 4, arrival=1.0, **limits)
    scheduler.policies.apply(request)
    scheduler.add(request)
    assert planned(scheduler, 1.0) == {}
    assert scheduler.wakes_at == pytest.approx(1.02)
    assert [ended for ended, _, _ in scheduler.expire(scheduler.wakes_at)] == [request]
    assert planned(scheduler, scheduler.wakes_at) == {}
    assert scheduler.wakes_at is None


@pytest.mark.parametrize("strategy", ["static", "dynamic", "bucketed"])
def test_nobody_joins_a_batch_that_decodes(strategy: str) -> None:
    scheduler = run_to_completion(strategy, batch_wait_ms=0.0)
    scheduler.add(make_request("a", 4, max_tokens=3))
    assert planned(scheduler, 0.0) == {"a": 4}
    scheduler.add(make_request("b", 4))
    if strategy != "bucketed":  # A bucket is chosen once.
        assert planned(scheduler, 0.0) == {"b": 4}, "still filling"
    assert "a" in planned(scheduler, 0.0)
    scheduler.add(make_request("c", 4))
    while scheduler.running:
        assert "c" not in planned(scheduler, 0.0)
    assert planned(scheduler, 0.0)["c"] == 4


def test_padding_is_that_of_the_prompts_and_of_empty_slots() -> None:
    scheduler = run_to_completion("static", batch_wait_ms=0.0)
    for name, prompt, max_tokens in (("a", 10, 1), ("b", 4, 2), ("c", 7, 4)):
        scheduler.add(make_request(name, prompt, max_tokens=max_tokens))
    padding = []
    while scheduler.waiting or scheduler.running:
        plan = scheduler.schedule(0.0)
        padding.append(plan.padding)
        commit(scheduler, plan, [7] * len(plan.sampling))
    assert padding == [6 + 3, 1, 2, 2]


def test_padding_of_a_batch_that_never_decodes_is_counted_too() -> None:
    scheduler = run_to_completion("static", batch_wait_ms=0.0)
    for name, prompt in (("a", 10), ("b", 4)):
        scheduler.add(make_request(name, prompt, max_tokens=1))
    assert scheduler.schedule(0.0).padding == 6


def test_a_dynamic_batch_has_so_many_tokens() -> None:
    scheduler = run_to_completion("dynamic", slots=8, budget=10)
    for name in "ab":
        scheduler.add(make_request(name, 4))
    assert planned(scheduler, 0.0) == {}
    scheduler.add(make_request("c", 4))
    assert planned(scheduler, 0.0) == {"a": 4, "b": 4}, "'c' would be over"
    assert planned(scheduler, 0.0) == {"a": 1, "b": 1}


def test_a_prompt_longer_than_a_dynamic_batch_is_one_of_its_own() -> None:
    scheduler = run_to_completion("dynamic", slots=8, budget=10)
    for name, prompt in (("long", 25), ("short", 2)):
        scheduler.add(make_request(name, prompt, max_tokens=1))
    assert [planned(scheduler, 1.0) for _ in range(4)] == [{"long": 10}, {"long": 10}, {"long": 5}, {"short": 2}]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 5))
def test_a_bucket_has_the_head_and_those_nearest_to_it_in_length(lengths: list[int], slots: int) -> None:
    scheduler = run_to_completion("bucketed", slots=slots, batch_wait_ms=0.0, budget=200)
    for number, length in enumerate(lengths):
        scheduler.add(make_request(f"{number}", length, max_tokens=2, arrival=number / 1000))
    while scheduler.waiting:
        queue = list(scheduler.waiting)
        bucket = [int(name) for name in planned(scheduler, 1.0)]
        assert int(queue[0].request_id) in bucket
        assert len(bucket) <= slots
        least, most = min(lengths[n] for n in bucket), max(lengths[n] for n in bucket)
        window = {int(request.request_id) for request in queue[: 8 * slots]}
        assert not [n for n in window - set(bucket) if least < lengths[n] < most], "one of such a length was left out"
        while scheduler.running:
            planned(scheduler, 1.0)


def test_a_bucket_lets_go_of_a_request_that_has_left_the_queue() -> None:
    scheduler = run_to_completion("bucketed", slots=2, batch_wait_ms=0.0, budget=4)
    scheduler.add(make_request("a", 4))
    request = make_request("b", 4)
    request.imported = ImportedBlocks(3, np.zeros((1, 1), dtype=np.uint8))
    imported = weakref.ref(request.imported)
    scheduler.add(request)
    assert planned(scheduler, 1.0) == {"a": 4}
    scheduler.remove("b")
    del request
    assert planned(scheduler, 1.0) == {"a": 1}
    assert imported() is None


def test_one_of_a_bucket_that_waits_for_a_prefix_keeps_its_seat() -> None:
    scheduler = run_to_completion("bucketed", slots=2, batch_wait_ms=0.0)
    for name in "ab":
        scheduler.add(make_request(name, range(9)))
    assert [planned(scheduler, 0.0) for _ in range(3)] == [{"a": 9}, {"b": 1}, {"a": 1, "b": 1}]


# -- continuous batching -----------------------------------------------------------------------------------------------


def test_with_a_delay_factor_arrivals_group() -> None:
    scheduler = make_scheduler(scheduler_delay_factor=0.5)
    for name in "ab":
        scheduler.add(make_request(name, 4, max_tokens=20))
    plan = scheduler.schedule(0.0)
    assert shares(plan) == {"a": 4, "b": 4}, "nobody runs: there is nothing to wait for"
    scheduler.observe(plan, 2.0)
    commit(scheduler, plan, [7, 7])
    scheduler.add(make_request("c", 4, arrival=2.0))
    scheduler.add(make_request("d", 4, arrival=2.1))
    assert planned(scheduler, 2.9).keys() == {"a", "b"}
    assert planned(scheduler, 3.15).keys() == {"a", "b", "c", "d"}


def test_steps_of_decodes_alone_do_not_change_the_delay() -> None:
    scheduler = make_scheduler(scheduler_delay_factor=1.0)
    scheduler.add(make_request("a", 4, max_tokens=9))
    for seconds in (1.0, 50.0):
        plan = scheduler.schedule(0.0)
        scheduler.observe(plan, seconds)
        commit(scheduler, plan, [7])
    scheduler.add(make_request("b", 4, arrival=60.0))
    assert planned(scheduler, 60.9).keys() == {"a"}
    assert planned(scheduler, 61.0).keys() == {"a", "b"}


def test_with_a_threshold_short_prompts_pass_long_ones() -> None:
    scheduler = make_scheduler(budget=8, long_prefill_token_threshold=3)
    for name, prompt in (("long", 20), ("short", 4)):
        scheduler.add(make_request(name, prompt, max_tokens=2))
    assert planned(scheduler, 0.0) == {"long": 3, "short": 3}
    assert planned(scheduler, 0.0) == {"short": 1, "long": 3}
    assert planned(scheduler, 0.0) == {"short": 1, "long": 3}


def test_only_so_many_prompts_are_computed_in_chunks_at_once() -> None:
    scheduler = make_scheduler(budget=8, long_prefill_token_threshold=3, max_num_partial_prefills=1)
    for name, prompt in (("a", 7), ("b", 7), ("c", 2)):
        scheduler.add(make_request(name, prompt))
    assert planned(scheduler, 0.0) == {"a": 3}
    assert planned(scheduler, 0.0) == {"a": 3}
    assert planned(scheduler, 0.0) == {"a": 1, "b": 3, "c": 2}, "'a' is done, and 'c' is whole"


# -- prefixes ----------------------------------------------------------------------------------------------------------


def together(*requests: Request, **settings: Any) -> list[dict[str, int]]:
    scheduler = make_scheduler(**({"budget": 64} | settings))
    for request in requests:
        scheduler.add(request)
    steps = []
    while scheduler.waiting or scheduler.running:
        steps.append(step(scheduler))
    return steps


def test_of_two_that_arrive_with_the_same_prompt_one_computes_it() -> None:
    steps = together(*(make_request(name, range(11), max_tokens=2) for name in "ab"), make_request("c", 5))
    assert steps[0] == {"a": 11, "c": 5}, "'c' passes the one that waits"
    assert steps[1] == {"a": 1, "c": 1, "b": 3}


def test_a_prefix_is_waited_for_as_far_as_the_step_computes_it() -> None:
    steps = together(*(make_request(name, range(20), max_tokens=1) for name in "ab"), budget=10)
    # After two of its five blocks 'a' begins another one in each step, so that 'b' follows when 'a' is done.
    assert steps == [{"a": 10}, {"a": 10}, {"b": 4}]


@pytest.mark.parametrize(("per_tenant", "computes"), [(True, 9), (False, 1)])
def test_tenants_share_prefixes_unless_they_are_kept_apart(per_tenant: bool, computes: int) -> None:
    scheduler = make_scheduler(per_tenant=per_tenant)
    shared = []
    for name, tenant in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "")):
        scheduler.add(make_request(name, range(9), max_tokens=1, tenant=tenant))
        shared.append(step(scheduler)[name])
    assert shared == [9, 1, computes, computes]


def test_tenants_that_are_kept_apart_do_not_wait_for_each_other() -> None:
    requests = [make_request(name, range(9), max_tokens=1, tenant=name) for name in "ab"]
    assert together(*requests, per_tenant=True) == [{"a": 9, "b": 9}]
    requests = [make_request(name, range(9), max_tokens=1, tenant=name) for name in "ab"]
    assert together(*requests) == [{"a": 9}, {"b": 1}]


@pytest.mark.parametrize("strategy", ["static", "dynamic", "bucketed"])
def test_each_beam_of_a_batch_has_a_slot_of_its_own(strategy: str) -> None:
    scheduler, model = run_to_completion(strategy, slots=4, batch_wait_ms=0.0), FakeModel(4)
    scheduler.add(make_request("beams", [1, 2, 3, 4], max_tokens=5, beam_width=3))
    scheduler.add(make_request("other", [1, 2, 3, 5], max_tokens=3))
    padding = []
    while scheduler.waiting or scheduler.running:
        plan = scheduler.schedule(0.0)
        padding.append(plan.padding)
        scheduler.commit(plan, model.run(plan), 0.0)
    # The prompts, two decodes of all, and two of the beams beside the slot of the other.
    assert padding == [0, 0, 0, 1, 1]
