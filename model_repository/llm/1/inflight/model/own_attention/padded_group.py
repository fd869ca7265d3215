"""How a batch is divided for a model that computes like transformers' `generate`: rows of equal length, padded left."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.model.ragged_batch import RaggedBatch

_MAX_PADDED = 2
"""A padded group has at most so many times as many tokens as its rows have."""


@dataclass(frozen=True)
class PaddedGroup:
    """B rows of N new tokens each, whose contexts are padded on the left to the same length L."""

    tokens: NDArray[np.int64]
    """[B, N], the index of each new token in the batch."""
    slots: torch.Tensor
    """[B * N] int64, where the keys and values of the new tokens belong."""
    context_slots: torch.Tensor
    """[B, L] int64, where those of all tokens are. Padding reads those of the row's first new token."""
    mask: torch.Tensor
    """[B, L] int64, 0 for padding and 1 for tokens."""

    @property
    def num_cached(self) -> int:
        """The number of tokens before the new ones, padding included."""
        return self.mask.shape[1] - self.tokens.shape[1]

    @classmethod
    def of(cls, batch: RaggedBatch, rows: list[int], block_size: int) -> "PaddedGroup":
        """Pad these rows of a batch."""
        device, starts = batch.slots.device, np.array(batch.query_starts)[rows]
        num_new = batch.query_starts[rows[0] + 1] - batch.query_starts[rows[0]]
        tokens = starts[:, None] + np.arange(num_new)
        lengths = torch.tensor([batch.context_lens[row] for row in rows], device=device)[:, None]
        longest = max(batch.context_lens[row] for row in rows)
        positions = torch.arange(longest, device=device) - (longest - lengths)
        mask = positions >= 0
        positions = torch.where(mask, positions, lengths - num_new)
        blocks = batch.block_tables[rows].gather(1, positions // block_size)
        return cls(
            tokens=tokens,
            slots=batch.slots[torch.from_numpy(tokens).flatten().to(device)],
            context_slots=blocks * block_size + positions % block_size,
            mask=mask.long(),
        )


def divide(batch: RaggedBatch, block_size: int, *, pads: bool) -> Iterator[PaddedGroup]:
    """Divide a batch into groups. If not `pads`, only rows with contexts of equal length share one."""
    new, contexts = np.diff(batch.query_starts).tolist(), batch.context_lens
    group: list[int] = []
    total = 0
    for row in sorted(range(batch.num_rows), key=lambda row: (new[row], contexts[row])):
        total += contexts[row]
        padded = contexts[row] * (len(group) + 1)
        fits = padded <= _MAX_PADDED * total if pads else padded == total
        if group and not (fits and new[row] == new[group[0]]):
            yield PaddedGroup.of(batch, group, block_size)
            group, total = [], contexts[row]
        group.append(row)
    yield PaddedGroup.of(batch, group, block_size)
