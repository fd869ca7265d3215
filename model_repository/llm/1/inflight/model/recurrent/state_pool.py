"""The tensors that hold the recurrent states of sequences and their snapshots."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DummyLayer, LinearAttentionLayer

from inflight.model.recurrent.state_layer import StateLayer, StateShape

_NO_LAYER: Any = DummyLayer()  # type: ignore[no-untyped-call]


class StatePool:
    """The states of one layer: for each of its tensors, [slots, *shape]. All slots are zero at first."""

    def __init__(self, layer: StateLayer, device: torch.device) -> None:
        self._layer, self._device = layer, device
        self._tensors = [self._zeros(state, 0) for state in layer.states]

    def _zeros(self, state: StateShape, count: int) -> torch.Tensor:
        return torch.zeros((count, *state.shape), dtype=state.dtype, device=self._device)

    def reserve(self, count: int) -> None:
        """Have at least `count` slots. The states that are there stay."""
        more = count - len(self._tensors[0])
        if more > 0:
            pairs = zip(self._tensors, self._layer.states, strict=True)
            self._tensors = [torch.cat((tensor, self._zeros(state, more))) for tensor, state in pairs]

    def read(self, slots: Sequence[int], *, continues: bool) -> list[torch.Tensor]:
        """Return the states in slots, [sequences, *shape] each. Changes to them count after `write`.

        `continues`: whether the sequences have states yet. Otherwise the content is arbitrary.
        """
        if _is_run(slots):
            return [tensor[slots[0] : slots[-1] + 1] for tensor in self._tensors]
        index = self._index(slots)
        return [
            tensor.index_select(0, index) if continues else tensor.new_empty((len(slots), *tensor.shape[1:]))
            for tensor in self._tensors
        ]

    def write(self, slots: Sequence[int], states: Sequence[torch.Tensor]) -> None:
        """Store what `read` has returned and the layer has changed."""
        if _is_run(slots):
            return  # They were changed in place.
        index = self._index(slots)
        for tensor, state in zip(self._tensors, states, strict=True):
            tensor.index_copy_(0, index, state)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy states from a slot to another. All are read before any is written."""
        sources, targets = (self._index(slots) for slots in zip(*pairs, strict=True))
        for tensor in self._tensors:
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))

    def _index(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self._device)


def _is_run(slots: Sequence[int]) -> bool:
    return slots == list(range(slots[0], slots[0] + len(slots)))


def as_cache(layer: StateLayer, states: Sequence[torch.Tensor], *, continues: bool) -> Cache:
    """Return a cache of transformers' own with the states of some sequences in one layer, which changes them in place.

    Args:
        layer: the layer that they belong to.
        states: for each of `layer.states`, [sequences, *shape].
        continues: whether the sequences have states yet. Otherwise the layer does not read them.
    """
    kept: Any = LinearAttentionLayer(number_of_states=layer.num_states)
    kept.has_previous_state = dict.fromkeys(kept.has_previous_state, continues)
    kept.device = states[0].device
    for shape, state in zip(layer.states, states, strict=True):
        if shape.is_convolution:
            kept.conv_states[shape.number], kept.is_conv_states_initialized[shape.number] = state, True
            kept.conv_kernel_size[shape.number] = state.shape[-1]
        else:
            kept.recurrent_states[shape.number], kept.is_recurrent_states_initialized[shape.number] = state, True
    return Cache(layers=[_NO_LAYER] * layer.layer_index + [kept])
