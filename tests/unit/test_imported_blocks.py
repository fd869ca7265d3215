"""Requests that bring the keys and values of their first tokens from elsewhere."""

from typing import Any

import numpy as np
import pytest

from inflight.kv_cache.imported_blocks import ImportedBlocks
from inflight.request import Request
from tests.unit.builders import admit, make_request, make_scheduler, make_tables, shares, step


def arriving(name: str, prompt: list[int] | int, imported: int, **options: Any) -> Request:
    """A request that brings `imported` tokens, in blocks of 4 whose bytes are their numbers."""
    request = make_request(name, prompt, **options)
    data = np.arange(-(-imported // 4), dtype=np.uint8)[:, None]
    request.imported = ImportedBlocks(imported, data)
    return request


def planned(tables: Any) -> list[tuple[list[int], tuple[int, ...]]]:
    return [(data[:, 0].tolist(), blocks) for data, blocks in tables.planned.take_imported()]


def test_what_comes_along_counts_as_computed() -> None:
    tables = make_tables()
    request = arriving("a", 10, 7)
    assert admit(tables, request)
    assert (request.num_computed, request.imported) == (7, None)
    assert planned(tables) == [([0, 1], tuple(request.blocks[:2]))]
    assert planned(tables) == []


def test_the_last_token_is_computed_in_any_case() -> None:
    tables = make_tables()
    request = arriving("a", 8, 8)
    assert admit(tables, request)
    assert request.num_computed == 7


def test_only_what_the_prefix_cache_lacks_is_written() -> None:
    tables = make_tables()
    first = make_request("a", 8)
    assert admit(tables, first)
    tables.commit(first, 8)
    second = arriving("b", [*first.prompt_ids, 1, 2, 3, 4, 5], 12)
    assert admit(tables, second)
    assert second.num_computed == 12
    assert planned(tables) == [([2], (second.blocks[2],))]
    assert second.blocks[:2] == first.blocks


def test_nothing_is_written_where_the_prefix_cache_has_more() -> None:
    tables = make_tables()
    first = make_request("a", 8)
    assert admit(tables, first)
    tables.commit(first, 8)
    second = arriving("b", [*first.prompt_ids, 1], 5)
    assert admit(tables, second)
    assert (second.num_computed, planned(tables)) == (8, [])


def test_others_share_what_came_along_once_the_step_has_written_it() -> None:
    scheduler = make_scheduler()
    prompt = list(range(12))
    scheduler.add(arriving("a", prompt, 11))
    scheduler.add(make_request("b", prompt))
    assert step(scheduler) == {"a": 1}  # b would compute what a brings.
    assert step(scheduler) == {"a": 1, "b": 4}


def test_what_a_failed_step_was_to_write_is_not_shared() -> None:
    scheduler = make_scheduler()
    prompt = list(range(12))
    scheduler.add(arriving("a", prompt, 11))
    scheduler.fail_step(scheduler.schedule(0.0))
    scheduler.add(make_request("b", prompt))
    assert shares(scheduler.schedule(0.0)) == {"b": 12}


def test_scored_tokens_are_computed() -> None:
    scheduler = make_scheduler()
    scheduler.add(arriving("a", 10, 9, prompt_logprobs=0))
    assert step(scheduler) == {"a": 10}


def test_an_import_that_a_scored_prompt_cannot_use_is_not_lost() -> None:
    """The part before it is in the cache, so nothing was evicted."""
    scheduler = make_scheduler()
    prompt = list(range(14))
    scheduler.add(make_request("a", prompt[:6]))
    step(scheduler)
    scored = make_request("b", prompt, prompt_logprobs=0)
    scored.imported = ImportedBlocks(12, np.zeros((2, 1), dtype=np.uint8), first_block=1)
    scheduler.add(scored)
    assert step(scheduler)["b"] == 14
    assert scheduler.tables.lost_imports == {}


@pytest.mark.parametrize(("num_tokens", "shape"), [(0, (0, 5)), (3, (4, 5)), (3, (3,))])
def test_impossible_imports_are_refused(num_tokens: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="imported tokens cannot have data of the shape"):
        ImportedBlocks(num_tokens, np.zeros(shape, dtype=np.uint8))


def test_blocks_that_begin_later_need_those_before_them() -> None:
    tables = make_tables()
    data = np.arange(2, dtype=np.uint8)[:, None]
    first, second = make_request("a", list(range(6))), make_request("b", list(range(14)))
    second.imported = ImportedBlocks(12, data, first_block=1)
    assert tables.num_known(second, tables.prefixes.lookup(second)) == 0
    assert admit(tables, first)
    tables.commit(first, 6)
    assert tables.num_known(second, tables.prefixes.lookup(second)) == 12
    assert admit(tables, second)
    assert planned(tables) == [([0, 1], tuple(second.blocks[1:3]))]
    assert second.hits == {"device": 4, "host": 0, "remote": 8}


def test_an_import_that_is_lost_counts_once_for_all_samples() -> None:
    tables = make_tables()
    for lost in (1, 2):
        imported = ImportedBlocks(12, np.zeros((2, 1), dtype=np.uint8), first_block=1)
        for sample in "abc":
            request = make_request(f"{sample}{lost}", list(range(14)))
            request.imported = imported
            assert admit(tables, request)
            assert request.num_computed == 0
            tables.release(request)
        assert tables.lost_imports == {"remote": lost}
