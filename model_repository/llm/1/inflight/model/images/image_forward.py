"""The forward pass of a model that also reads images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.forward import ForwardPass, Outputs
from inflight.model.ragged_batch import RaggedBatch


@dataclass(frozen=True)
class ImageForward:
    """Runs batches with tokens of images by one forward pass, and all others by another one."""

    text: ForwardPass
    images: ForwardPass

    def bytes_to_prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> int:
        """See `ForwardPass`. Batches with images need no preparation."""
        return self.text.bytes_to_prepare(caches, max_rows, max_blocks)

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """See `ForwardPass`."""
        self.text.prepare(caches, max_rows, max_blocks)

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        forward = self.text if batch.images is None or batch.images.features is None else self.images
        return forward(batch, caches, rows)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`."""
        return self.text.head(hidden)
