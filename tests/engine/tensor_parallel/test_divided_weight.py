"""The part of a matrix that belongs to a rank's part of a divided weight."""

import pytest
import torch
from torch import nn

from inflight.model.parallel.layers import DividedWeight
from inflight.model.parallel.shards import Shards


@pytest.mark.parametrize(
    ("dim", "pieces", "copies", "parts"),
    [
        (0, 1, 1, [[0, 1, 2], [3, 4, 5]]),
        (1, 1, 1, [[0, 1, 2], [3, 4, 5]]),
        # Two matrices of three rows, one after the other.
        (0, 2, 1, [[0, 1, 3, 4], [2, 5]]),
        (0, 1, 2, [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]),
    ],
)
def test_each_rank_has_the_part_that_it_has_of_the_weight(
    dim: int, pieces: int, copies: int, parts: list[list[int]]
) -> None:
    weight = DividedWeight(nn.Module(), "weight", dim, 6, pieces, copies)
    numbers = torch.arange(6.0)[:, None].expand(6, 2)
    for rank, part in enumerate(parts):
        shards = Shards.__new__(Shards)
        shards.rank, shards.size = rank, len(parts)
        found = weight.part_of(numbers if dim == 0 else numbers.T, shards)
        assert found.select(1 - dim, 0).tolist() == part
