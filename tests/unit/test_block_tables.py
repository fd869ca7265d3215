"""Admission with prefix reuse, growth and release of whole block tables."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.kv_cache.block_hash import BlockHasher
from inflight.kv_cache.block_table_array import BlockTableArray
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.cache_salt import CacheSalt
from inflight.lora.adapter import Adapter
from inflight.request import Request
from inflight.request_options import RequestOptions
from tests.unit.builders import admit, make_request, make_tables


def served(tables: BlockTables, request_id: str, prompt: range, **settings: Any) -> Request:
    """A request whose whole prompt has been computed."""
    request = make_request(request_id, prompt, **settings)
    assert admit(tables, request)
    tables.commit(request, request.num_uncomputed)
    return request


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_are_counted_in_whole(tokens: int, blocks: int) -> None:
    assert make_tables(block_size=4).blocks_for(tokens) == blocks


def test_admission_gives_blocks_for_all_known_tokens() -> None:
    tables = make_tables(block_size=4)
    request = make_request("a", 9)
    assert admit(tables, request)
    assert len(request.blocks) == 3
    assert request.num_computed == 0


def test_nothing_is_taken_when_the_blocks_do_not_suffice() -> None:
    tables = make_tables(num_blocks=4, block_size=4)
    tables.pool.release(served(tables, "a", range(8)).blocks)
    tables.pool.allocate(1)
    request = make_request("b", range(16))
    assert not admit(tables, request)
    assert request.blocks == []
    assert tables.pool.num_used == 1
    assert tables.pool.num_cached == 2


def test_a_hit_that_must_be_taken_from_the_free_blocks_counts_as_taken() -> None:
    tables = make_tables(num_blocks=3, block_size=4)
    tables.release(served(tables, "a", range(8)))
    tables.pool.allocate(1)  # Two blocks are free, and both are the hit.
    assert not admit(tables, make_request("b", range(9)))
    assert tables.pool.num_used == 1


def test_a_hit_that_others_use_needs_no_free_block() -> None:
    tables = make_tables(num_blocks=3, block_size=4)
    first = served(tables, "a", range(8))
    second = make_request("b", range(9))
    assert admit(tables, second)
    assert second.blocks[:2] == first.blocks
    assert second.num_computed == 8


def test_the_last_token_is_computed_even_if_all_blocks_are_known() -> None:
    tables = make_tables(block_size=4)
    first = served(tables, "a", range(8))
    second = make_request("b", range(8))
    assert admit(tables, second)
    assert second.num_computed == 4
    assert second.blocks[0] == first.blocks[0]
    assert second.blocks[1] != first.blocks[1]


def test_equal_tokens_after_different_ones_are_no_hit() -> None:
    tables = make_tables(block_size=2)
    served(tables, "a", range(0, 8))
    request = make_request("b", [99, 1, *range(2, 8)])
    assert admit(tables, request)
    assert request.num_computed == 0


def test_nothing_is_reused_with_prefix_caching_off() -> None:
    tables = make_tables(block_size=2, prefix_caching=False)
    tables.release(served(tables, "a", range(8)))
    assert tables.pool.num_cached == 0
    request = make_request("b", range(8))
    assert admit(tables, request)
    assert request.num_computed == 0


def test_blocks_are_offered_for_reuse_only_once_their_step_has_committed() -> None:
    tables = make_tables(block_size=2)
    first, second = make_request("a", range(6)), make_request("b", range(6))
    assert admit(tables, first)
    assert admit(tables, second)
    assert second.num_computed == 0
    assert not set(first.blocks) & set(second.blocks)


def test_only_full_blocks_are_offered_for_reuse() -> None:
    tables = make_tables(block_size=4)
    request = make_request("a", range(8))
    admit(tables, request)
    tables.commit(request, 3)
    tables.release(request)
    assert tables.pool.num_cached == 0
    admit(tables, request)
    tables.commit(request, 3)
    tables.commit(request, 3)
    tables.release(request)
    assert tables.pool.num_cached == 1


def test_blocks_filled_with_output_are_reused_too() -> None:
    tables = make_tables(block_size=2)
    first = served(tables, "a", range(3))
    first.token_ids.append(3)
    assert tables.grow(first)
    tables.commit(first, 1)
    second = make_request("b", range(5))
    assert admit(tables, second)
    assert second.num_computed == 4


def test_two_requests_that_compute_the_same_prompt_keep_their_own_blocks() -> None:
    tables = make_tables(block_size=2)
    first, second = make_request("a", range(4)), make_request("b", range(4))
    admit(tables, first)
    admit(tables, second)
    before = list(second.blocks)
    tables.commit(first, 4)
    tables.commit(second, 4)
    assert second.blocks == before
    tables.release(first)
    tables.release(second)
    assert tables.pool.num_cached == 2


def test_a_table_grows_by_a_block_when_the_last_is_full() -> None:
    tables = make_tables(block_size=4)
    request = served(tables, "a", range(7))
    for token, blocks in ((7, 2), (8, 3), (9, 3)):
        request.token_ids.append(token)
        assert tables.grow(request)
        assert len(request.blocks) == blocks


def test_growth_fails_without_a_change_when_no_block_is_free() -> None:
    tables = make_tables(num_blocks=1, block_size=4)
    request = served(tables, "a", range(4))
    blocks = list(request.blocks)
    request.token_ids.append(4)
    assert not tables.grow(request)
    assert request.blocks == blocks


def test_release_returns_every_block_and_forgets_what_was_computed() -> None:
    tables = make_tables()
    request = served(tables, "a", range(9))
    tables.release(request)
    assert (request.blocks, request.num_computed) == ([], 0)
    assert tables.pool.num_used == 0
    tables.release(request)  # A request that waits holds nothing.
    assert tables.pool.num_used == 0


@given(st.lists(st.integers(0, 3), max_size=24), st.lists(st.integers(0, 3), max_size=24), st.integers(1, 5))
def test_blocks_have_equal_names_just_where_all_tokens_so_far_are_equal(
    first: list[int], second: list[int], block_size: int
) -> None:
    hasher = BlockHasher(block_size)
    names: tuple[list[bytes], list[bytes]] = ([], [])
    for tokens, hashes in zip((first, second), names, strict=True):
        hasher.extend(hashes, tokens, len(tokens), CacheSalt())
        assert len(hashes) == len(tokens) // block_size
    for index, (one, other) in enumerate(zip(*names, strict=False)):
        end = (index + 1) * block_size
        assert (one == other) == (first[:end] == second[:end])


def test_hashes_extended_in_parts_are_those_made_at_once() -> None:
    hasher, tokens = BlockHasher(4), list(range(20))
    parts: list[bytes] = []
    for length in (3, 4, 11, 20):
        hasher.extend(parts, tokens, length, CacheSalt())
    whole: list[bytes] = []
    hasher.extend(whole, tokens, 20, CacheSalt())
    assert parts == whole


@pytest.mark.parametrize("salt", [CacheSalt(tenant="a"), CacheSalt(client="a"), CacheSalt("a", "b"), CacheSalt("ab")])
def test_sequences_with_different_salts_share_no_name(salt: CacheSalt) -> None:
    hasher, tokens = BlockHasher(4), list(range(8))
    names: list[list[bytes]] = []
    for one in (salt, CacheSalt(), CacheSalt("b", "a"), salt):
        names.append([])
        hasher.extend(names[-1], tokens, 8, one)
    assert names[0] == names[3]
    assert not set(names[0]) & {*names[1], *names[2]}


def test_only_engines_with_the_same_key_name_blocks_alike() -> None:
    names: list[list[bytes]] = []
    for key in (b"shared", b"shared", b"another", None, None):
        names.append([])
        BlockHasher(4, key).extend(names[-1], [1, 2, 3, 4], 4, CacheSalt())
    assert names[0] == names[1]
    assert len({name for (name,) in names}) == 4


def test_requests_share_prefixes_only_with_those_of_the_same_cache_salt() -> None:
    tables = make_tables(num_blocks=32)
    served(tables, "first", range(9), options=RequestOptions(cache_salt="blue"))
    for salt, shared in (("blue", 2), ("red", 0), ("", 0)):
        request = make_request(salt, range(9), options=RequestOptions(cache_salt=salt))
        assert len(tables.prefixes.lookup(request)) == shared


def test_requests_share_prefixes_only_with_those_of_the_same_adapter() -> None:
    tables = make_tables(num_blocks=32)
    sql, copy_of_sql, poems = Adapter("sql", 0, "5a"), Adapter("copy", 1, "5a"), Adapter("poems", 2, "7c")
    first = make_request("first", range(9))
    first.adapter = sql
    assert admit(tables, first)
    tables.commit(first, first.num_uncomputed)
    for adapter, shared in ((sql, 2), (copy_of_sql, 2), (poems, 0), (None, 0)):
        request = make_request(str(adapter), range(9))
        request.adapter = adapter
        assert len(tables.prefixes.lookup(request)) == shared


def test_the_array_of_tables_grows_in_both_directions() -> None:
    array = BlockTableArray()
    slots = [array.take() for _ in range(20)]
    assert len(set(slots)) == 20
    for slot in slots:
        array.put(slot, 0, range(slot, slot + 100))
        array.put(slot, 100, [7, 8])
    array.put(slots[1], 0, [5, 6])
    tables = array.gather(slots[:3], 102)
    assert tables.shape == (3, 102)
    assert tables[1].tolist() == [5, 6, *[5] * 100]
    assert tables[2, -2:].tolist() == [7, 8]
    array.put(slots[2], 102, range(500))
    assert array.gather([slots[1]], 602)[0, 2:].tolist() == [5] * 600
    array.give_back(slots[0])
    assert array.take() == slots[0]


def test_a_table_that_a_step_reads_has_no_block_behind_the_chunk_that_the_step_computes() -> None:
    tables = make_tables(num_blocks=32, block_size=4)
    long, short = make_request("long", 22), make_request("short", 6)
    for request in (long, short):
        tables.admit(request, [])
    found = tables.gather([long, short], [9, 6])
    assert found[0].tolist() == long.blocks[:3]
    assert found[1].tolist() == [*short.blocks, short.blocks[0]]
    found = tables.gather([long, short], [3, 6])
    assert found[0].tolist() == [long.blocks[0]] * 2
