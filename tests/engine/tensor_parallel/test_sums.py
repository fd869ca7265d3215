"""Sums over the ranks: each element is added up in the order of the ranks, wherever it is in a tensor."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from inflight.errors import UnsupportedModel
from inflight.model.parallel import shards as shards_module
from inflight.model.parallel.rendezvous import Rendezvous
from inflight.model.parallel.shards import Shards
from inflight.model.parallel.workers import LOOPBACK

SIZE = 3


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Shards]]:
    """Three ranks in threads of this process, connected."""
    rendezvous = Rendezvous("ranks", folder=tmp_path)
    found = [Shards(rank, SIZE, torch.device("cpu"), rendezvous, LOOPBACK) for rank in range(SIZE)]
    with ThreadPoolExecutor(SIZE) as pool:
        list(pool.map(lambda shards: shards.renew(1), found))
    yield found
    for each in found:
        each.abandon()


def sums(ranks: list[Shards], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(lambda shards, tensor: shards.sum(tensor), ranks, tensors))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("small_bytes", [1 << 20, 0])
def test_a_row_has_one_sum_whatever_the_other_rows_are(
    ranks: list[Shards], dtype: torch.dtype, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "_SMALL_BYTES", small_bytes)
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(64, 65, generator=generator).to(dtype) for _ in range(SIZE)]
    together = sums(ranks, tensors)
    accurate = torch.stack([tensor.to(torch.promote_types(dtype, torch.float32)) for tensor in tensors])
    expected = ((accurate[0] + accurate[1]) + accurate[2]).to(dtype)
    assert all(torch.equal(each, expected) for each in together)
    for row in (0, 31, 63):
        alone = sums(ranks, [tensor[row : row + 1] for tensor in tensors])
        assert all(torch.equal(each, expected[row : row + 1]) for each in alone)


def test_what_a_rank_computes_alone_must_not_need_the_others(ranks: list[Shards]) -> None:
    """It would wait for ranks that never come."""
    with ranks[0].alone("the encoder is divided"), pytest.raises(UnsupportedModel, match="the encoder is divided"):
        ranks[0].sum(torch.ones(3))
    assert all(total.tolist() == [3.0] for total in sums(ranks, [torch.ones(1)] * SIZE))
