"""How rank 0 gives an adapter, which it has read while the model serves, to the other ranks."""

from collections.abc import Iterator

import numpy as np
import torch

from inflight.model.batch_arrays import Ints
from inflight.model.lora.adapter_weights import AdapterWeights, LayerDelta
from inflight.model.lora.lora_layers import AdaptedLayers
from inflight.model.parallel.shards import Shards
from inflight.model.runner import within_memory

# So few that the next step need not wait long for them.
_LAYERS_AT_ONCE = 8


def adapter_messages(layers: AdaptedLayers, slot: int, adapter: AdapterWeights) -> Iterator[Ints]:
    """Yield what tells the other ranks which layers come next.

    Each is the slot, the place of the first layer in `layers.names`, and the adapter's ranks in that layer and those
    after it; 0 where it changes nothing.
    """
    for first in range(0, len(layers.names), _LAYERS_AT_ONCE):
        ranks = (adapter.rank(name) for name in layers.names[first : first + _LAYERS_AT_ONCE])
        yield np.array([slot, first, *ranks], dtype=np.int64)


@torch.inference_mode()
def put_on_all_ranks(layers: AdaptedLayers, message: Ints, shards: Shards, adapter: AdapterWeights | None) -> None:
    """Put a part of an adapter, which only rank 0 has, into a slot of all ranks, which must all call this.

    `message` is one of `adapter_messages`. If a rank fails, the slot may have something of the adapter. No request may
    use it until another one is there.

    Raises:
        OutOfMemory: there is too little memory.
    """
    slot, first, *ranks = message.tolist()

    def put() -> None:
        for name, rank in zip(layers.names[first:], ranks, strict=False):
            delta = _received(layers, name, rank, shards, adapter) if rank else None
            layers.put_layer(name, slot, delta)

    within_memory(put)


def _received(
    layers: AdaptedLayers, name: str, rank: int, shards: Shards, adapter: AdapterWeights | None
) -> LayerDelta:
    """Return the whole change of one layer: rank 0 sends it, and the others take it."""
    if adapter is not None:
        down, up = (each.to(shards.device) for each in (adapter.layers[name].down, adapter.layers[name].up))
    else:
        inputs, outputs = layers.widths(name)
        down, up = torch.empty(rank, inputs, device=shards.device), torch.empty(outputs, rank, device=shards.device)
    return LayerDelta(shards.broadcast(down), shards.broadcast(up))
