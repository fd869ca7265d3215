"""The forward pass over batches in which embeddings take the place of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.forward import ForwardPass, Outputs
from inflight.model.ragged_batch import RaggedBatch


@dataclass(frozen=True)
class EmbedForward:
    """Runs batches with embeddings by one forward pass, and all others by another one."""

    plain: ForwardPass
    embedded: ForwardPass

    def bytes_to_prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> int:
        """See `ForwardPass`. Batches with embeddings need no preparation."""
        return self.plain.bytes_to_prepare(caches, max_rows, max_blocks)

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """See `ForwardPass`."""
        self.plain.prepare(caches, max_rows, max_blocks)

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        forward = self.plain if batch.embeds is None else self.embedded
        return forward(batch, caches, rows)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`."""
        return self.plain.head(hidden)
