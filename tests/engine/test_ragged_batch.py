"""The layout of a step plan as one flat batch: tokens, positions, slots, block tables and sampled rows."""

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


def build(*scheduled: tuple[Request, int]) -> RaggedBatch:
    return RaggedBatch.on(torch.device("cpu"), BatchArrays.of(make_plan(*scheduled), BLOCK_SIZE))


SCHEDULED = [
    (running("decode", [10, 11, 12, 13, 14, 15], 5, [7, 2]), 1),
    (running("chunk", list(range(20, 32)), 4, [5, 0]), 3),
    (running("prompt", [40, 41], 0, [3]), 2),
    (running("short", [50, 51], 1, [8]), 1),
]
"""Requests with their scheduled tokens: a decode, a chunk of a prompt, a whole prompt, the last token of a prompt."""


@pytest.fixture
def batch() -> RaggedBatch:
    return build(*SCHEDULED)


def test_rows_of_one_token_come_first_in_the_order_of_their_context_length(batch: RaggedBatch) -> None:
    order = BatchArrays.of(make_plan(*SCHEDULED), BLOCK_SIZE).order
    assert [SCHEDULED[index][0].request_id for index in order] == ["short", "decode", "prompt", "chunk"]
    assert (batch.num_rows, batch.num_single) == (4, 2)
    assert batch.query_starts == [0, 1, 2, 4, 7]
    assert batch.context_lens == [2, 6, 2, 7]


def test_the_tokens_of_a_row_are_its_next_uncomputed_tokens(batch: RaggedBatch) -> None:
    assert batch.token_ids.tolist() == [51, 15, 40, 41, 24, 25, 26]


def test_positions_count_from_the_start_of_each_sequence(batch: RaggedBatch) -> None:
    assert batch.positions.tolist() == [1, 5, 0, 1, 4, 5, 6]


def test_the_slots_of_a_row_are_in_its_own_blocks(batch: RaggedBatch) -> None:
    assert batch.slots.tolist() == [8 * 4 + 1, 2 * 4 + 1, 3 * 4, 3 * 4 + 1, 0, 1, 2]


def test_a_block_table_has_the_blocks_of_its_request_and_no_others(batch: RaggedBatch) -> None:
    assert batch.block_tables.tolist() == [[8, 8], [7, 2], [3, 3], [5, 0]]


def test_partial_blocks_are_those_whose_first_slot_is_written_but_not_the_last(batch: RaggedBatch) -> None:
    assert batch.partial_blocks.tolist() == [3, 0]
    assert build((running("prompt", list(range(9)), 0, [5, 1, 7]), 8)).partial_blocks.tolist() == []
    assert build((running("prompt", list(range(9)), 2, [5, 1, 7]), 7)).partial_blocks.tolist() == [7]
    assert build((running("decode", [1, 2, 3], 2, [0]), 1)).partial_blocks.tolist() == []


def test_rows_that_reach_their_last_token_are_sampled_in_the_order_of_the_plan(batch: RaggedBatch) -> None:
    assert [s.request.request_id for s in make_plan(*SCHEDULED).sampling] == ["decode", "prompt", "short"]
    assert batch.logit_rows.tolist() == [1, 3, 0]


def test_a_chunk_within_a_prompt_is_not_sampled() -> None:
    batch = build((running("chunk", list(range(12)), 4, [0, 1, 2]), 3))
    assert batch.logit_rows.tolist() == []
    assert batch.num_single == 0


def test_a_chunk_may_start_and_end_within_blocks() -> None:
    batch = build((running("chunk", list(range(12)), 3, [6, 1, 4]), 6))
    assert batch.slots.tolist() == [6 * 4 + 3, 4, 5, 6, 7, 4 * 4]


def test_a_chunk_of_one_token_is_a_single_token_row_but_is_not_sampled() -> None:
    decode = running("decode", [1, 2, 3], 2, [0])
    batch = build((decode, 1), (running("chunk", list(range(12)), 1, [1, 2, 3]), 1))
    assert batch.num_single == 2
    assert batch.logit_rows.tolist() == [1]


def test_building_a_batch_changes_no_request() -> None:
    request = running("a", [1, 2, 3, 4, 5], 2, [3, 1])
    build((request, 3))
    assert (request.num_computed, request.blocks, request.token_ids) == (2, [3, 1], [1, 2, 3, 4, 5])
