"""Host memory that preempted requests and prefixes share, and prefixes that come back from it."""

from typing import Any

from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.host_pool import HostPool
from inflight.request import Request
from tests.unit.builders import admit, make_request, make_scheduler, make_tables, shares, step

A, B, C = b"a", b"b", b"c"


def keeping(*names: bytes, size: int = 2) -> HostPool:
    """A pool whose prefixes have been copied."""
    pool = HostPool(size)
    for name in names:
        assert pool.keep(name) is not None
    pool.settle()
    return pool


def test_a_prefix_is_found_once_its_copy_is_made() -> None:
    pool = HostPool(2)
    block = pool.keep(A)
    assert pool.count([A]) == 0
    pool.settle()
    assert pool.count([A]) == 1
    assert pool.read([A]) == [block]


def test_a_prefix_whose_copy_failed_is_not_found() -> None:
    pool = HostPool(1)
    pool.keep(A)
    pool.forget_arriving()
    pool.settle()
    assert (pool.count([A]), pool.num_prefixes) == (0, 0)
    assert pool.keep(B) is not None


def test_what_is_there_is_not_copied_again() -> None:
    pool = keeping(A)
    assert pool.keep(A) is None
    pool.read([A])
    assert pool.keep(A) is None


def test_the_least_recently_used_prefix_goes_first() -> None:
    pool = keeping(A, B)
    pool.keep(A)
    pool.keep(C)
    pool.settle()
    assert [pool.count([name]) for name in (A, B, C)] == [1, 0, 1]


def test_the_tail_of_a_chain_goes_before_its_head() -> None:
    pool = keeping(A, B)
    pool.read([A, B])
    pool.settle()
    pool.keep(C)
    assert [pool.count([name]) for name in (A, B)] == [1, 0]


def test_a_block_that_is_read_is_not_overwritten() -> None:
    pool = keeping(A, B)
    (block,) = pool.read([A])
    assert pool.keep(C) not in (None, block)
    assert pool.keep(b"d") is None
    assert pool.allocate(1) is None
    assert pool.read([A]) == [block]
    pool.settle()
    assert pool.allocate(1) is not None


def test_preempted_requests_push_out_prefixes_and_not_the_reverse() -> None:
    pool = keeping(A, B)
    pinned = pool.allocate(2)
    assert pinned is not None
    assert (pool.num_used, pool.num_prefixes) == (2, 0)
    assert pool.keep(C) is None
    pool.release(pinned)
    pool.settle()
    assert pool.keep(C) is not None


def evicted(host: int = 4) -> tuple[BlockTables, Request, list[int], list[int]]:
    """Tables that copied the two full blocks of a prompt out; the prompt's blocks, and those in host memory."""
    tables = make_tables(num_blocks=3, block_size=4, host=host)
    request = make_request("a", 10)
    assert admit(tables, request)
    blocks = list(request.blocks[:2])
    tables.commit(request, 9)
    tables.release(request)
    other = make_request("b", 12)
    assert admit(tables, other)
    copies = dict(tables.planned.take_copies()[0])
    assert copies.keys() == set(blocks)
    tables.host.settle()
    tables.release(other)
    return tables, request, blocks, [copies[block] for block in blocks]


def test_an_evicted_prefix_comes_back() -> None:
    tables, request, _, host = evicted()
    assert tables.num_known(request, tables.prefixes.lookup(request)) == 8
    assert admit(tables, request)
    assert request.num_computed == 8
    assert tables.planned.take_copies() == ((), (), tuple(zip(host, request.blocks[:2], strict=True)))
    assert request.hits == {"device": 0, "host": 8}


def test_hits_go_on_in_host_memory_where_they_end_on_the_device() -> None:
    tables, request, _, host = evicted()
    first = make_request("c", [*request.prompt_ids[:4], 1])
    assert admit(tables, first)
    tables.planned.take_copies()
    tables.commit(first, 1)
    tables.release(first)
    assert admit(tables, request)
    assert tables.planned.take_copies()[2] == ((host[1], request.blocks[1]),)
    assert request.num_computed == 8


def test_without_host_memory_nothing_is_copied() -> None:
    tables = make_tables(num_blocks=3, block_size=4)
    assert tables.pool.on_evict is None


def crowded(**settings: Any) -> Any:
    """A scheduler whose host memory has the prompt `range(8)`."""
    scheduler = make_scheduler(num_blocks=3, swap_space_tokens=16, **settings)
    for number, prompt in enumerate((list(range(8)), 12)):
        scheduler.add(make_request(str(number), prompt, max_tokens=1))
        step(scheduler)
    return scheduler


def test_what_a_failed_step_was_to_keep_is_computed_again() -> None:
    scheduler = make_scheduler(num_blocks=3, swap_space_tokens=16)
    scheduler.add(make_request("a", list(range(8)), max_tokens=1))
    step(scheduler)
    scheduler.add(make_request("b", 12, max_tokens=1))
    plan = scheduler.schedule(0.0)
    assert plan.swapped_out
    scheduler.fail_step(plan)
    scheduler.add(make_request("c", [*range(8), 9], max_tokens=1))
    assert shares(scheduler.schedule(0.0)) == {"c": 9}


def test_a_kept_prefix_is_not_computed() -> None:
    scheduler = crowded()
    request = make_request("c", [*range(8), 9], max_tokens=1)
    scheduler.add(request)
    assert step(scheduler) == {"c": 1}
    assert request.hits["host"] == 8
