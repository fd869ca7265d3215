"""Who gets how many tokens of a step."""

import pytest

from inflight.request import Request
from inflight.scheduler.committed import Committed
from inflight.scheduler.scheduler import Scheduler
from tests.unit.builders import commit, holds, make_request, make_scheduler, shares, step


def add(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        assert scheduler.fits(request)
        scheduler.add(request)


def test_the_plan_is_empty_when_nothing_waits_or_runs() -> None:
    assert make_scheduler().schedule(0.0).scheduled == ()


def test_a_prompt_is_computed_and_sampled_in_one_step_if_the_budget_allows() -> None:
    scheduler = make_scheduler(budget=8)
    request = make_request("a", 8)
    add(scheduler, request)
    plan = scheduler.schedule(0.0)
    assert shares(plan) == {"a": 8}
    assert [share.request for share in plan.sampling] == [request]
    assert commit(scheduler, plan, [5]) == [Committed(request, (5,), None)]
    assert request.token_ids[-1] == 5
    assert request.num_uncomputed == 1


def test_a_long_prompt_is_computed_in_chunks_and_sampled_after_the_last() -> None:
    scheduler = make_scheduler(budget=4)
    request = make_request("a", 10)
    add(scheduler, request)
    assert [step(scheduler)["a"] for _ in range(3)] == [4, 4, 2]
    assert request.num_output == 1


def test_a_chunk_that_ends_before_the_last_token_gives_no_token() -> None:
    scheduler = make_scheduler(budget=4)
    add(scheduler, make_request("a", 5))
    plan = scheduler.schedule(0.0)
    assert plan.sampling == []
    assert commit(scheduler, plan, []) == []


def test_decodes_come_first_and_chunks_share_what_is_left() -> None:
    scheduler = make_scheduler(budget=8)
    add(scheduler, make_request("a", 4), make_request("b", 20))
    assert step(scheduler) == {"a": 4, "b": 4}
    assert step(scheduler) == {"a": 1, "b": 7}
    assert step(scheduler) == {"a": 1, "b": 7}
    assert step(scheduler) == {"a": 1, "b": 2}


def test_a_younger_decode_goes_before_an_older_chunk() -> None:
    scheduler = make_scheduler(budget=8)
    old, young = make_request("a", 20), make_request("b", 1)
    add(scheduler, old, young)
    for request in (old, young):
        scheduler.waiting.remove(request.request_id)
        scheduler.running[request.request_id] = request
        scheduler.tables.admit(request, [])
    assert list(step(scheduler).items()) == [("b", 1), ("a", 7)]


def test_chunks_of_several_prompts_fill_a_step_in_order_of_admission() -> None:
    scheduler = make_scheduler(budget=10)
    add(scheduler, make_request("a", 4), make_request("b", 4), make_request("c", 4))
    assert step(scheduler) == {"a": 4, "b": 4, "c": 2}


def test_the_budget_is_never_passed_over_even_by_one_decode() -> None:
    scheduler = make_scheduler(budget=3, max_num_seqs=8)
    add(scheduler, *(make_request(name, 1, max_tokens=9) for name in "abcde"))
    assert step(scheduler) == {"a": 1, "b": 1, "c": 1}
    assert step(scheduler) == {"a": 1, "b": 1, "c": 1}


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, *(make_request(name, 2, max_tokens=2) for name in "abc"))
    assert list(step(scheduler)) == ["a", "b"]
    assert list(step(scheduler)) == ["a", "b"]
    assert list(step(scheduler)) == ["c"]


def test_requests_are_admitted_first_come_first_served() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4, budget=64)
    add(scheduler, make_request("a", 8, max_tokens=1))
    add(scheduler, make_request("b", 12, max_tokens=1), make_request("c", 1, max_tokens=1))
    # `c` would fit beside `a`, but `b` came before it.
    assert step(scheduler) == {"a": 8}
    assert step(scheduler) == {"b": 12, "c": 1}


def test_a_higher_priority_is_admitted_first_and_stops_nobody_who_runs() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, make_request("runs", 2, max_tokens=2, priority=3))
    assert list(step(scheduler)) == ["runs"]
    add(scheduler, *(make_request(f"of {level}", 2, max_tokens=1, priority=level) for level in (3, 1, 2)))
    assert [list(step(scheduler)) for _ in range(4)] == [["runs"], ["of 1"], ["of 2"], ["of 3"]]


def test_a_burst_with_one_beginning_does_not_lengthen_the_step_that_computes_it() -> None:
    scheduler = make_scheduler(num_blocks=512, max_num_seqs=512, budget=64, long_prefill_token_threshold=8)
    beginning = list(range(16))
    burst = [make_request(f"{number}", [*beginning, 100 + number]) for number in range(300)]
    for request in burst:
        scheduler.add(request)
    assert step(scheduler) == {"0": 8}
    assert sum(bool(request.block_hashes) for request in burst) <= 65, "more of them were looked at"
    assert step(scheduler) == {"0": 8}
    assert len(step(scheduler)) == 64, "and then as many join as the step has room for"


def test_a_prefix_hit_spares_the_budget() -> None:
    scheduler = make_scheduler(block_size=4, budget=16)
    add(scheduler, make_request("a", range(12), max_tokens=1))
    step(scheduler)
    second = make_request("b", range(12))
    add(scheduler, second)
    assert step(scheduler) == {"b": 4}
    assert second.num_cached == 8


def test_a_request_leaves_with_its_last_token() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 3, max_tokens=2)
    add(scheduler, request)
    step(scheduler)
    plan = scheduler.schedule(0.0)
    assert commit(scheduler, plan, [9]) == [Committed(request, (9,), "length")]
    assert not holds(scheduler, "a")
    assert scheduler.tables.pool.num_used == 0


def test_a_stop_token_ends_a_request() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 3, stop_token_ids=[9])
    add(scheduler, request)
    assert commit(scheduler, scheduler.schedule(0.0), [9]) == [Committed(request, (9,), "stop")]


def test_a_stop_token_that_is_also_the_last_token_counts_as_a_stop() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 3, max_tokens=1, stop_token_ids=[9])
    add(scheduler, request)
    assert commit(scheduler, scheduler.schedule(0.0), [9]) == [Committed(request, (9,), "stop")]


def test_a_stop_token_before_min_tokens_ends_nothing() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 3, max_tokens=5, min_tokens=2, stop_token_ids=[9])
    add(scheduler, request)
    assert commit(scheduler, scheduler.schedule(0.0), [9]) == [Committed(request, (9,), None)]
    assert commit(scheduler, scheduler.schedule(0.0), [9]) == [Committed(request, (9,), "stop")]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_request_can_be_removed_at_any_time(steps: int) -> None:
    scheduler = make_scheduler(budget=4)
    request = make_request("a", 8, max_tokens=9)
    add(scheduler, request)
    for _ in range(steps):
        step(scheduler)
    assert holds(scheduler, "a")
    assert scheduler.remove("a") is request
    assert not holds(scheduler, "a")
    assert scheduler.tables.pool.num_used == 0
    assert scheduler.schedule(0.0).scheduled == ()


def test_removing_an_unknown_request_does_nothing() -> None:
    assert make_scheduler().remove("a") is None


@pytest.mark.parametrize(("prompt", "max_tokens", "fits"), [(8, 1, True), (8, 2, False), (1, 8, True), (1, 9, False)])
def test_a_request_fits_if_all_but_its_last_token_have_room(prompt: int, max_tokens: int, fits: bool) -> None:
    scheduler = make_scheduler(num_blocks=2, block_size=4)
    assert scheduler.fits(make_request("a", prompt, max_tokens=max_tokens)) is fits


@pytest.mark.parametrize("block_size", [1, 2, 3, 8])
def test_a_request_that_fills_the_whole_cache_finishes(block_size: int) -> None:
    scheduler = make_scheduler(num_blocks=8 // block_size + 1, block_size=block_size, budget=2)
    capacity = scheduler.tables.pool.num_blocks * block_size
    request = make_request("a", 3, max_tokens=capacity - 2)
    assert request.max_cached_tokens == capacity
    add(scheduler, request)
    for _ in range(capacity):
        step(scheduler)
    assert not holds(scheduler, "a")
    assert request.num_output == request.max_tokens
    assert request.num_preemptions == 0
