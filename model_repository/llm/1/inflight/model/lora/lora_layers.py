"""Linear layers that add the changes of adapters to their outputs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from inflight.errors import UnsupportedModel
from inflight.model.lora.active_adapters import active_adapters
from inflight.model.lora.adapter_weights import AdapterWeights, LayerDelta
from inflight.model.lora.division import AdapterDivision
from inflight.model.lora.linear_layers import linear_layer

_LANES = 16
# An adapter that has been trained changes outputs by about as much.
_RANDOM_SIZE = 0.02


class AdaptedLayer:
    """Lets a linear layer add the change by each token's own adapter to its output.

    Each token gets the change of its own adapter (as in S-LoRA, arXiv 2311.03285, and Punica, arXiv 2310.18547). The
    layer itself stays as it is, so tokens without an adapter get its output unchanged.
    """

    def __init__(
        self, layer: nn.Module, inputs: int, outputs: int, *, slots: int, rank: int, like: torch.Tensor, kernel: bool
    ) -> None:
        """`rank` is the highest one of an adapter, `like` a tensor of the type and on the device of the layer.

        `kernel`: use the C++ kernel, which needs bfloat16 on a CPU.
        """
        self.inputs, self.outputs, self.rank = inputs, outputs, rank
        self._down, self._up = like.new_zeros(slots, rank, inputs), like.new_zeros(slots, rank, outputs)
        self._ranks: torch.Tensor | None = None
        if kernel:
            self._down, self._up = _packed(self._padded_down(self._down)), _packed(self._padded_up(self._up))
            self._ranks = torch.zeros(slots, dtype=torch.int64)
            layer.register_buffer("lora_ranks", self._ranks, persistent=False)
        # Tensors that are not part of a module become constants of a traced graph, which are compared with each other.
        layer.register_buffer("lora_down", self._down, persistent=False)
        layer.register_buffer("lora_up", self._up, persistent=False)
        layer.register_forward_hook(_add_by_kernel if kernel else _add)

    @property
    def nbytes_per_slot(self) -> int:
        return self._down[0].nbytes + self._up[0].nbytes

    def put(self, slot: int, delta: LayerDelta | None) -> None:
        """Make this the change by the adapter in a slot. None: it does not change the layer.

        No forward pass that uses the slot may run at this time.
        """
        rank = 0 if delta is None else len(delta.down)
        down, up = torch.zeros(1, self.rank, self.inputs), torch.zeros(1, self.rank, self.outputs)
        if delta is not None:
            down[0, :rank], up[0, :rank] = delta.down, delta.up.T
        if self._ranks is not None:
            down, up = (_packed(each) for each in (self._padded_down(down), self._padded_up(up)))
            self._ranks[slot] = rank + -rank % _LANES
        with torch.inference_mode():
            self._down[slot], self._up[slot] = down[0], up[0]

    def _padded_down(self, down: torch.Tensor) -> torch.Tensor:
        # The kernel multiplies pairs of inputs.
        return nn.functional.pad(down, (0, self.inputs % 2, 0, -self.rank % _LANES))

    def _padded_up(self, up: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(up, (0, -self.outputs % _LANES, 0, -self.rank % _LANES)).transpose(1, 2)


def _add_by_kernel(layer: Any, inputs: Sequence[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    adapters = active_adapters()
    if adapters is None:
        return y
    x = inputs[0]
    if x.shape[-1] % 2:
        x = nn.functional.pad(x, (0, 1))
    tensors = layer.lora_down, layer.lora_up, layer.lora_ranks
    added: torch.Tensor = torch.ops.inflight.add_lora(y, x, adapters.slots, *tensors)
    return added


def _add(layer: Any, inputs: Sequence[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    adapters = active_adapters()
    if adapters is None:
        return y
    x, added = inputs[0].reshape(-1, inputs[0].shape[-1]), y.reshape(-1, y.shape[-1]).clone()
    if len(x) != len(adapters.slots):
        raise RuntimeError(f"a layer gets {len(x)} of the {len(adapters.slots)} tokens of a batch")
    for slot, tokens in adapters.tokens:
        added[tokens] += x[tokens] @ layer.lora_down[slot].T @ layer.lora_up[slot]
    return added.view(y.shape)


def _packed(matrices: torch.Tensor) -> torch.Tensor:
    """Pack matrices [adapters, N, K] for the kernel as [adapters, N / 16, K / 2, 16, 2]."""
    adapters, rows, columns = matrices.shape
    return matrices.reshape(adapters, rows // _LANES, _LANES, columns // 2, 2).transpose(2, 3).contiguous()


class AdaptedLayers:
    """The layers of a model that adapters change, with slots for a number of adapters."""

    def __init__(
        self,
        module: Any,
        named: Iterable[AdapterWeights],
        *,
        slots: int,
        ranks: Mapping[str, int],
        kernel: bool,
        division: AdapterDivision | None = None,
    ) -> None:
        """Prepare the layers that the `named` adapters change, and those of `ranks`, which hold such a rank at least.

        All slots are empty. A divided model has a `division`: it takes whole adapters, and keeps this rank's part.

        Raises:
            UnsupportedModel: an adapter changes what is not a linear layer of the model.
        """
        self._module, self._division = module, division
        wheres, highest = dict[str, str](), dict(ranks)
        for adapter in named:
            for name, delta in adapter.layers.items():
                wheres.setdefault(name, adapter.where)
                highest[name] = max(highest.get(name, 0), len(delta.down))
        like, self._layers = next(module.parameters()), dict[str, AdaptedLayer]()
        self._widths = dict[str, tuple[int, int]]()
        for name in sorted(highest):
            layer, inputs, outputs = linear_layer(module, name, wheres.get(name, ""))
            self._widths[name] = (inputs, outputs) if division is None else division.widths(name, inputs, outputs)
            self._layers[name] = AdaptedLayer(
                layer, inputs, outputs, slots=slots, rank=highest[name], like=like, kernel=kernel
            )

    @property
    def nbytes_per_slot(self) -> int:
        return sum(layer.nbytes_per_slot for layer in self._layers.values())

    @property
    def names(self) -> list[str]:
        """The names of the layers, in the same order on all ranks."""
        return list(self._layers)

    def widths(self, name: str) -> tuple[int, int]:
        """Return the numbers of inputs and outputs of a layer: of the whole one if the model is divided."""
        return self._widths[name]

    def put(self, slot: int, adapter: AdapterWeights) -> None:
        """Put an adapter that passes `check` into a slot that no running request uses."""
        for name in self._layers:
            self.put_layer(name, slot, adapter.layers.get(name))

    def put_layer(self, name: str, slot: int, delta: LayerDelta | None) -> None:
        """Put the change of one layer into a slot. See `put` and `AdaptedLayer.put`."""
        if delta is not None and self._division is not None:
            delta = self._division.part(name, delta)
        self._layers[name].put(slot, delta)

    @contextmanager
    def random(self, slots: Iterable[int]) -> Iterator[None]:
        """Have small random changes of all layers in these slots, which are empty afterwards."""
        generator, used = torch.Generator().manual_seed(0), list(slots)
        for name, layer in self._layers.items():
            inputs, outputs = self._widths[name]
            for slot in used:
                down = torch.randn(layer.rank, inputs, generator=generator) / inputs**0.5
                up = _RANDOM_SIZE * torch.randn(outputs, layer.rank, generator=generator)
                self.put_layer(name, slot, LayerDelta(down, up))
        try:
            yield
        finally:
            for layer in self._layers.values():
                for slot in used:
                    layer.put(slot, None)

    def check(self, adapter: AdapterWeights) -> None:
        """Check whether an adapter fits.

        Raises:
            UnsupportedModel: it changes other layers.
            ValueError: it does not have the widths of a layer, or its rank is too high.
        """
        for name, delta in adapter.layers.items():
            self._check(adapter.where, name, delta)

    def _check(self, where: str, name: str, delta: LayerDelta) -> None:
        layer = self._layers.get(name)
        if layer is None:
            linear_layer(self._module, name, where)
            raise UnsupportedModel(
                f"{where}; it changes {name}, which does not get all tokens of a batch; that is not supported"
            )
        found, wanted = (delta.down.shape[1], delta.up.shape[0]), self._widths[name]
        if found != wanted:
            raise ValueError(
                f"{where}; it has {found[0]} inputs and {found[1]} outputs for {name}; the model's layer has "
                f"{wanted[0]} and {wanted[1]}"
            )
        if len(delta.down) > layer.rank:
            raise ValueError(
                f"{where}; it has the rank {len(delta.down)} for {name}; it must be at most {layer.rank}, max_lora_rank"
            )
