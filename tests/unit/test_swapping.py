"""Preempted requests whose keys and values are kept in host memory."""

from typing import Any

import pytest

from inflight.kv_cache.host_pool import HostPool
from inflight.request import Request
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.step_time import attention_pairs
from tests.unit.builders import admit, holds, make_request, make_scheduler, make_tables, shares, step, waiting


def test_host_blocks_that_are_given_back_are_free_once_the_copies_are_made() -> None:
    space = HostPool(3)
    first = space.allocate(2)
    assert first is not None
    assert space.allocate(2) is None
    assert space.num_used == 2
    space.release(first)
    assert space.num_used == 0
    assert space.allocate(2) is None
    space.settle()
    assert space.num_used == 0
    assert sorted(space.allocate(3) or []) == [0, 1, 2]


def swapped_out(host: int = 4) -> tuple[Any, Request]:
    tables = make_tables(num_blocks=6, block_size=4, host=host, prefix_caching=False)
    request = make_request("a", 10)
    assert admit(tables, request)
    tables.commit(request, 9)
    return tables, request


def test_what_was_computed_goes_out_and_comes_back() -> None:
    tables, request = swapped_out()
    before = list(request.blocks)
    assert tables.swap_out(request)
    assert (request.blocks, request.num_computed, request.num_swapped) == ([], 0, 9)
    assert tables.pool.num_used == 0
    host = list(request.host_blocks)
    assert tables.planned.take_copies() == (tuple(zip(before, host, strict=True)), (), ())
    assert admit(tables, request)
    assert (request.num_computed, request.num_swapped, request.host_blocks) == (9, 0, [])
    assert tables.planned.take_copies() == ((), (), tuple(zip(host, request.blocks, strict=True)))
    tables.host.settle()
    assert tables.host.num_used == 0


def test_nothing_happens_where_host_memory_is_full() -> None:
    tables, request = swapped_out(host=2)
    assert not tables.swap_out(request)
    assert (len(request.blocks), request.num_computed) == (3, 9)
    assert tables.planned.take_copies() == ((), (), ())


def test_only_what_the_prefix_cache_lacks_is_copied_back() -> None:
    tables = make_tables(num_blocks=6, block_size=4, host=4)
    request = make_request("a", 10)
    assert admit(tables, request)
    tables.commit(request, 9)
    assert tables.swap_out(request)
    third = request.host_blocks[2]
    tables.planned.take_copies()
    assert admit(tables, request)
    assert tables.planned.take_copies() == ((), (), ((third, request.blocks[2]),))
    assert request.num_computed == 9


def crowded(**settings: Any) -> tuple[Scheduler, Request]:
    """`b` is about to be preempted in favour of `a`, with 4 tokens computed."""
    scheduler = make_scheduler(
        next_tokens=0, num_blocks=2, prefix_caching=False, **({"swap_space_tokens": 8} | settings)
    )
    for name in "ab":
        scheduler.add(make_request(name, 4, max_tokens=5))
    step(scheduler)
    return scheduler, scheduler.running["b"]


def test_a_swapped_request_goes_on_where_it_was() -> None:
    scheduler, request = crowded(preemption_mode="swap")
    step(scheduler)
    assert (waiting(scheduler), request.num_swapped, scheduler.preemptor.num_swaps) == (["b"], 4, 1)
    while holds(scheduler, "a"):
        step(scheduler)
    assert step(scheduler) == {"b": 1}


def test_when_host_memory_is_full_it_is_computed_again() -> None:
    scheduler, request = crowded(preemption_mode="swap", swap_space_tokens=3)
    step(scheduler)
    assert (request.num_preemptions, request.num_swapped, scheduler.preemptor.num_swaps) == (1, 0, 0)


@pytest.mark.parametrize(("seconds", "swaps"), [(0.0019, 1), (0.0021, 0)])
def test_auto_takes_what_is_cheaper(seconds: float, swaps: int) -> None:
    """A block there and back, against a prompt of four tokens."""
    scheduler, _ = crowded(preemption_mode="auto", swap_seconds_per_block=seconds)
    for tokens in (4, 100, 200, 300) * 20:
        scheduler.times.observe(tokens, 0, attention_pairs(0, tokens), tokens / 1000)
    step(scheduler)
    assert scheduler.preemptor.num_swaps == swaps


def test_a_swapped_request_that_is_cancelled_leaves_nothing() -> None:
    scheduler, _ = crowded(preemption_mode="swap")
    step(scheduler)
    scheduler.remove("b")
    assert scheduler.tables.host.num_used == 0  # Also if no step follows.
    scheduler.schedule(0.0)
    assert scheduler.tables.host.num_used == 0


def test_what_a_failed_step_was_to_copy_out_is_computed_again() -> None:
    scheduler, request = crowded(preemption_mode="swap")
    plan = scheduler.schedule(0.0)
    assert shares(plan) == {"a": 1}
    assert [gone.request_id for gone in scheduler.fail_step(plan)] == ["a"]
    assert (request.num_swapped, request.host_blocks) == (0, [])
    assert step(scheduler) == {"b": 5}


def test_one_that_has_computed_nothing_is_not_swapped() -> None:
    tables, request = make_tables(host=4), make_request("a", 4)
    assert admit(tables, request)
    assert not tables.swap_out(request)
