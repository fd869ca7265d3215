"""A plan laid out as one flat row: tokens, places, slots, tables and the rows that are sampled."""

import pytest
import torch

from inflight.model.batch_arrays import BatchArrays
from inflight.model.ragged_batch import RaggedBatch
from inflight.request import Request
from tests.unit.builders import make_plan, make_request

BLOCK_SIZE = 4


def running(name: str, token_ids: list[int], computed: int, blocks: list[int]) -> Request:
    request = make_request(name, token_ids)
    request.num_computed, request.blocks = computed, blocks
    return request


def build(*shares: tuple[Request, int]) -> RaggedBatch:
    return RaggedBatch.on(torch.device("cpu"), BatchArrays.of(make_plan(*shares), BLOCK_SIZE))


SHARES = [
    (running("decode", [10, 11, 12, 13, 14, 15], 5, [7, 2]), 1),
    (running("chunk", list(range(20, 32)), 4, [5, 0]), 3),
    (running("prompt", [40, 41], 0, [3]), 2),
    (running("short", [50, 51], 1, [8]), 1),
]
"""Two decodes, a chunk within a prompt, a whole prompt, and the last token of a prompt."""


@pytest.fixture
def batch() -> RaggedBatch:
    return build(*SHARES)


def test_rows_of_one_token_come_first_and_the_shortest_context_before_the_longer(batch: RaggedBatch) -> None:
    order = BatchArrays.of(make_plan(*SHARES), BLOCK_SIZE).order
    assert [SHARES[share][0].request_id for share in order] == ["short", "decode", "prompt", "chunk"]
    assert (batch.num_rows, batch.num_single) == (4, 2)
    assert batch.query_starts == [0, 1, 2, 4, 7]
    assert batch.context_lens == [2, 6, 2, 7]


def test_tokens_are_the_next_that_are_not_computed(batch: RaggedBatch) -> None:
    assert batch.token_ids.tolist() == [51, 15, 40, 41, 24, 25, 26]


def test_positions_are_places_in_the_sequence(batch: RaggedBatch) -> None:
    assert batch.positions.tolist() == [1, 5, 0, 1, 4, 5, 6]


def test_slots_follow_from_the_rows_own_blocks(batch: RaggedBatch) -> None:
    assert batch.slots.tolist() == [8 * 4 + 1, 2 * 4 + 1, 3 * 4, 3 * 4 + 1, 0, 1, 2]


def test_block_tables_hold_what_the_step_needs_and_no_block_of_others(batch: RaggedBatch) -> None:
    assert batch.block_tables.tolist() == [[8, 8], [7, 2], [3, 3], [5, 0]]


def test_blocks_are_begun_where_their_first_slot_is_written_and_not_their_last(batch: RaggedBatch) -> None:
    assert batch.partial_blocks.tolist() == [3, 0]
    assert build((running("prompt", list(range(9)), 0, [5, 1, 7]), 8)).partial_blocks.tolist() == []
    assert build((running("prompt", list(range(9)), 2, [5, 1, 7]), 7)).partial_blocks.tolist() == [7]
    assert build((running("decode", [1, 2, 3], 2, [0]), 1)).partial_blocks.tolist() == []


def test_only_rows_that_reach_their_last_token_are_sampled_in_the_plans_order(batch: RaggedBatch) -> None:
    assert [share.request.request_id for share in make_plan(*SHARES).sampling] == ["decode", "prompt", "short"]
    assert batch.logit_rows.tolist() == [1, 3, 0]


def test_a_chunk_within_a_prompt_is_sampled_by_nobody() -> None:
    batch = build((running("chunk", list(range(12)), 4, [0, 1, 2]), 3))
    assert batch.logit_rows.tolist() == []
    assert batch.num_single == 0


def test_a_chunk_may_cross_blocks_anywhere() -> None:
    batch = build((running("chunk", list(range(12)), 3, [6, 1, 4]), 6))
    assert batch.slots.tolist() == [6 * 4 + 3, 4, 5, 6, 7, 4 * 4]


def test_a_chunk_of_one_token_within_a_prompt_is_a_row_of_one_that_nobody_samples() -> None:
    decode = running("decode", [1, 2, 3], 2, [0])
    batch = build((decode, 1), (running("chunk", list(range(12)), 1, [1, 2, 3]), 1))
    assert batch.num_single == 2
    assert batch.logit_rows.tolist() == [1]


def test_building_changes_no_request() -> None:
    request = running("a", [1, 2, 3, 4, 5], 2, [3, 1])
    build((request, 3))
    assert (request.num_computed, request.blocks, request.token_ids) == (2, [3, 1], [1, 2, 3, 4, 5])
