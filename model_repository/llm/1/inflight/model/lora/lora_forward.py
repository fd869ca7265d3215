"""The forward pass of a model with adapters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from inflight.model.batch_arrays import NO_ADAPTER
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.forward import ForwardPass, Outputs
from inflight.model.lora.active_adapters import ActiveAdapters, use_adapters
from inflight.model.ragged_batch import RaggedBatch


@dataclass(frozen=True)
class EagerAdapted(ForwardPass):
    """Tells the layers of a model, whose own code runs, the adapters of a batch."""

    forward: ForwardPass

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        assert batch.adapters is not None
        with use_adapters(batch.adapters):
            return self.forward(batch, caches, rows)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`."""
        return self.forward.head(hidden)


@dataclass(frozen=True)
class WithMixedAdapters(EagerAdapted):
    """Runs every batch with different adapters, and without one, to check a forward pass at load time."""

    num_adapters: int

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        # A token's place in the cache differs from those of all others, and is the same in each forward pass.
        mixed = ActiveAdapters(batch.slots % (self.num_adapters + 1) + NO_ADAPTER)
        return self.forward(replace(batch, adapters=mixed), caches, rows)
