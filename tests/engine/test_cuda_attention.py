"""The attention of GPUs computes what float64 does: here on the CPU, by the interpreter of the kernels' language.

What it can't show is that the compiler agrees; `make gpu-check` does, where there is a GPU.
"""

import pytest
import torch

from inflight.model import tiles
from inflight.model.attention_interface import Attends
from inflight.model.kv_tensors import LayerCache, LayerShape
from inflight.model.ragged_batch import RaggedBatch
from tests.engine.dense_reference import Case, worst_error

EVERYTHING = [(0, 1), (15, 1), (16, 1), (100, 1), (9, 14), (31, 2), (0, 33), (0, 5)]
CASES = {
    "plain": Case(EVERYTHING, block_size=16),
    "single tokens": Case([(3, 1), (70, 1)], block_size=16),
    "prompts": Case([(0, 70), (64, 17)], block_size=16),
    "a head each": Case(EVERYTHING, query_heads=4, shape=LayerShape(4, 16, 16), block_size=16),
    "nine heads, three of keys": Case(EVERYTHING, query_heads=9, shape=LayerShape(3, 24, 24), block_size=16),
    "values narrower": Case(EVERYTHING, shape=LayerShape(2, 48, 20), block_size=16),
    "small blocks": Case(EVERYTHING, block_size=4),
    "odd blocks": Case(EVERYTHING, block_size=24),
    "window": Case(EVERYTHING, window=21, block_size=16),
    "window of one": Case(EVERYTHING, window=1, block_size=16),
    "softcap": Case(EVERYTHING, softcap=2.0, block_size=16),
    "sinks": Case(EVERYTHING, sinks=True, block_size=16),
    "all at once": Case(EVERYTHING, softcap=1.5, window=9, sinks=True, query_heads=6, block_size=16),
    "keys in parts": Case([(600, 1), (1100, 1), (0, 1), (5, 3)], block_size=16, sinks=True),
    "a window over parts": Case([(600, 1), (1100, 1)], block_size=16, window=500),
}


def attention(batch: RaggedBatch, caches: list[LayerCache], windows: list[int | None]) -> Attends:
    from inflight.model.cuda.kernel_attention import BatchTensors, KernelAttention

    return KernelAttention(BatchTensors.of(batch), caches, windows)


@pytest.mark.parametrize("name", CASES)
def test_attention(name: str) -> None:
    assert worst_error(CASES[name], torch.float32, attention) < 1e-5


def test_attention_in_half_precision() -> None:
    assert worst_error(CASES["all at once"], torch.float16, attention) < 5e-3


def test_keys_are_cut_where_few_rows_read_much() -> None:
    from inflight.model.cuda.kernel_attention import parts_for

    assert [parts_for(longest, 1) for longest in (0, 255, 511, 512, 2048, 10**6)] == [1, 1, 1, 2, 8, 32]
    assert [parts_for(10**6, rows) for rows in (1, 16, 17, 100, 512, 1000)] == [32, 32, 16, 4, 1, 1]


def test_tiles_cover_the_rows_that_are_asked_for() -> None:
    cut = tiles.cut([0, 1, 2, 9], [5, 1, 10], range(3), 3)
    assert cut.tolist() == [[0, 0, 1, 4], [1, 1, 1, 0], [2, 2, 3, 3], [2, 5, 3, 6], [2, 8, 1, 9]]
    assert tiles.cut([0, 1, 2, 9], [5, 1, 10], range(1, 2), 3).tolist() == [[1, 1, 1, 0]]
    assert tiles.cut([0, 1], [5], range(1, 1), 3).shape == (0, 4)
