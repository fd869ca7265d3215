"""The attention kernels for GPUs agree with float64. The tests run in the Triton language's interpreter on the CPU.

They cannot show that the compiled kernels are right, too. `make gpu-check` shows this on a machine with a GPU.
"""

import pytest
import torch

from inflight.model.attention import tiles
from inflight.model.attention.backend import CUDA_KERNELS
from scripts.reference.dense_attention import CASES, worst_error


@pytest.mark.parametrize("name", CASES)
def test_attention_agrees_with_dense_attention(name: str) -> None:
    assert worst_error(CASES[name], torch.float32, CUDA_KERNELS.attend) < 1e-5


def test_attention_in_half_precision_agrees_with_dense_attention() -> None:
    assert worst_error(CASES["all at once"], torch.float16, CUDA_KERNELS.attend) < 5e-3


def test_keys_are_cut_into_more_parts_for_long_contexts_and_few_rows() -> None:
    from inflight.model.cuda.kernel_attention import parts_for

    assert [parts_for(longest, 1) for longest in (0, 255, 511, 512, 2048, 10**6)] == [1, 1, 1, 2, 8, 32]
    assert [parts_for(10**6, rows) for rows in (1, 16, 17, 100, 512, 1000)] == [32, 32, 30, 5, 1, 1]


def test_tiles_cover_the_given_rows_and_no_others() -> None:
    cut = tiles.make_tiles([0, 1, 2, 9], [5, 1, 10], range(3), 3)
    assert cut.tolist() == [[0, 0, 1, 4], [1, 1, 1, 0], [2, 2, 3, 3], [2, 5, 3, 6], [2, 8, 1, 9]]
    assert tiles.make_tiles([0, 1, 2, 9], [5, 1, 10], range(1, 2), 3).tolist() == [[1, 1, 1, 0]]
    assert tiles.make_tiles([0, 1], [5], range(1, 1), 3).shape == (0, 4)
