"""Chooses the forward pass of a batch by what the batch holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.forward import ForwardPass, Outputs
from inflight.model.ragged_batch import RaggedBatch


@dataclass(frozen=True)
class RoutedForward(ForwardPass):
    """Runs special batches by one forward pass, and all others by another one."""

    plain: ForwardPass
    special: ForwardPass
    is_special: Callable[[RaggedBatch], bool]

    def bytes_to_prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> int:
        """See `ForwardPass`. Special batches need no preparation."""
        return self.plain.bytes_to_prepare(caches, max_rows, max_blocks)

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """See `ForwardPass`."""
        self.plain.prepare(caches, max_rows, max_blocks)

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        forward = self.special if self.is_special(batch) else self.plain
        return forward(batch, caches, rows)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`. The head is the same for all batches."""
        return self.plain.head(hidden)


def has_adapters(batch: RaggedBatch) -> bool:
    """Whether a token has a LoRA adapter."""
    return batch.adapters is not None


def has_images(batch: RaggedBatch) -> bool:
    """Whether a token is one of an image."""
    return batch.images is not None and batch.images.features is not None


def has_embeds(batch: RaggedBatch) -> bool:
    """Whether an embedding takes the place of a token."""
    return batch.embeds is not None
