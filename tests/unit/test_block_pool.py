"""References, reuse and eviction of single blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.kv_cache.block_pool import BlockPool


def cached(pool: BlockPool, *names: bytes) -> list[int]:
    """Allocate a table of one block per name, register it and give it up."""
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.register(block, name)
    pool.release(blocks)
    return blocks


def test_a_new_pool_is_all_free() -> None:
    pool = BlockPool(3)
    assert (pool.num_used, pool.num_free, pool.num_cached) == (0, 3, 0)


def test_allocated_blocks_are_distinct_and_used() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert len(set(blocks)) == 3
    assert all(0 <= block < 4 for block in blocks)
    assert (pool.num_used, pool.num_free) == (3, 1)


def test_nothing_is_taken_when_too_few_blocks_are_free() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="3 blocks asked for, 2 free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_released_blocks_can_be_allocated_again() -> None:
    pool = BlockPool(2)
    pool.release(pool.allocate(2))
    assert len(set(pool.allocate(2))) == 2


def test_a_block_that_nobody_uses_cannot_be_released() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match=f"block {blocks[0]} is released but not in use"):
        pool.release(blocks)
    assert pool.num_free == 2


def test_a_shared_block_is_used_until_its_last_reference_is_gone() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_used == 1
    pool.release(blocks)
    assert pool.num_used == 0


def test_a_registered_block_is_found_while_used_and_after() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert pool.find([b"a"]) == []
    pool.register(blocks[0], b"a")
    assert pool.find([b"a"]) == blocks
    pool.release(blocks)
    assert pool.find([b"a"]) == blocks
    assert (pool.num_cached, pool.num_free) == (1, 2)


def test_finding_takes_no_reference() -> None:
    pool = BlockPool(1)
    blocks = cached(pool, b"a")
    assert pool.find([b"a"]) == blocks
    assert pool.num_used == 0
    assert pool.num_unreferenced(blocks) == 1


def test_find_stops_at_the_first_gap_of_the_chain() -> None:
    pool = BlockPool(3)
    blocks = cached(pool, b"a", b"b", b"c")
    assert pool.find([b"a", b"x", b"c"]) == blocks[:1]
    assert pool.find([b"x", b"b"]) == []


def test_sharing_takes_a_cached_block_out_of_the_free_ones() -> None:
    pool = BlockPool(2)
    blocks = cached(pool, b"a")
    pool.share(blocks)
    assert (pool.num_used, pool.num_cached) == (1, 0)
    assert pool.num_unreferenced(blocks) == 0
    assert pool.allocate(1) != blocks


def test_empty_blocks_go_before_cached_ones() -> None:
    pool = BlockPool(2)
    blocks = cached(pool, b"a")
    assert pool.allocate(1) != blocks
    assert pool.find([b"a"]) == blocks


def test_the_cached_block_used_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(3)
    names = (b"a", b"b", b"c")
    tables = dict(zip(names, [pool.allocate(1) for _ in names], strict=True))
    for name in names:
        pool.register(tables[name][0], name)
    for name in names:
        pool.release(tables[name])
    pool.share(tables[b"a"])
    pool.release(tables[b"a"])  # `a` is now the one used last.
    evicted = [pool.allocate(1) for _ in names]
    assert evicted == [tables[b"b"], tables[b"c"], tables[b"a"]]


def test_the_tail_of_a_table_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    blocks = cached(pool, b"a", b"b", b"c")
    pool.allocate(1)
    assert pool.find([b"a", b"b", b"c"]) == blocks[:2]


def test_an_evicted_block_is_found_no_more() -> None:
    pool = BlockPool(1)
    blocks = cached(pool, b"a")
    assert pool.allocate(1) == blocks
    assert pool.find([b"a"]) == []
    pool.release(blocks)
    assert pool.num_cached == 0


def test_a_name_stays_with_the_block_that_had_it_first() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.register(first, b"a")
    pool.register(second, b"a")
    assert pool.find([b"a"]) == [first]
    pool.release([first, second])
    assert pool.num_cached == 1


def test_a_block_keeps_the_name_that_it_got_first() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.register(blocks[0], b"a")
    pool.register(blocks[0], b"b")
    assert pool.find([b"a"]) == blocks
    assert pool.find([b"b"]) == []


@given(
    num_blocks=st.integers(1, 6),
    operations=st.lists(st.tuples(st.sampled_from("arsn"), st.integers(0, 5)), max_size=60),
)
def test_used_and_free_always_add_up(num_blocks: int, operations: list[tuple[str, int]]) -> None:
    pool = BlockPool(num_blocks)
    held: list[int] = []  # One entry for each reference.
    for operation, number in operations:
        if operation == "a" and number <= pool.num_free:
            held += pool.allocate(number)
        elif operation == "r" and held:
            pool.release([held.pop(number % len(held))])
        elif operation == "s":
            found = pool.find([bytes([number])])
            pool.share(found)
            held += found
        elif operation == "n" and held:
            pool.register(held[number % len(held)], bytes([number]))
        assert pool.num_used == len(set(held))
        assert pool.num_used + pool.num_free == num_blocks
        assert pool.num_cached <= pool.num_free
    pool.release(held)
    assert pool.num_used == 0
    assert len(set(pool.allocate(num_blocks))) == num_blocks
