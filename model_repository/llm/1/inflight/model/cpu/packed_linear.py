"""Linear layers with packed weights. Sibling layers that read the same input are computed in one product."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from inflight.model.cache.huge_pages import zeros_huge_pages
from inflight.model.cpu.int4 import BYTES_OF_WEIGHT, GROUP, multiples, pack_int4, rounded_to_int4
from inflight.model.loading.attention_probe import probe_layers
from inflight.model.replacement import Replaced

_PANEL = 32

Bits: TypeAlias = Literal[4, 8, 16]
"""How many bits a weight has: int4, int8 or bfloat16."""

Int4Scales: TypeAlias = Mapping[nn.Linear, torch.Tensor]
"""The scales of layers whose weights are already rounded to int4."""


class PackedLinears:
    """The packed weights of sibling layers, for example of query, key and value, as one matrix.

    The first sibling that is called computes the product for all. The others take their columns of it if they get the
    very same input tensor.
    """

    def __init__(
        self, layers: Sequence[nn.Linear], room: "WeightRoom", bits: Bits = 16, int4_scales: Int4Scales | None = None
    ) -> None:
        """`bits` of 4 need the scales of the layers."""
        weight, self.scales, self._bits = torch.cat([_padded(layer.weight) for layer in layers]), None, bits
        if bits == 4:
            assert int4_scales is not None
            scales = torch.cat([_padded(int4_scales[layer], 1) for layer in layers])
            packed = pack_int4(multiples(weight, scales), scales)
        else:
            if bits == 8:
                weight, self.scales = rounded_to_int8(weight)
            packed = torch.ops.inflight.pack_weight(weight)
        self.packed = room.copy(packed)
        self.bias = _joint_bias(layers)
        self.in_features = layers[0].in_features
        self._widths = [_padded_rows(layer.weight) for layer in layers]
        self._counts = [layer.out_features for layer in layers]
        self._input: torch.Tensor | None = None
        self._outputs: Sequence[torch.Tensor] = ()

    def columns(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Return the output [..., out_features] of sibling `index` for x [..., in_features]."""
        if not self._outputs or self._input is not x:
            product = self.product(x)
            # A single layer needs no split: in a short step, even a view costs noticeable time.
            self._outputs = torch.split(product, self._widths, dim=-1) if len(self._widths) > 1 else (product,)
            self._input = x
        columns = self._outputs[index]
        if self._counts[index] < self._widths[index]:
            columns = columns.narrow(-1, 0, self._counts[index])
        if index == len(self._widths) - 1:
            # Models usually call the last sibling last, so the memory can be freed.
            self._input, self._outputs = None, ()
        return columns

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output [..., rows] of all siblings together, with their padding."""
        y: torch.Tensor
        if self._bits == 4:
            y = torch.ops.inflight.linear_int4(x, self.packed, self.bias)
        elif self.scales is None:
            y = torch.ops.inflight.linear(x, self.packed, self.bias)
        else:
            y = torch.ops.inflight.linear_int8(x, self.packed, self.scales, self.bias)
        return y


_BYTES: dict[Bits, float] = {4: BYTES_OF_WEIGHT, 8: 1, 16: 2}


class WeightRoom:
    """Memory for the packed weights of all layers. Those of a single layer are often too small for huge pages."""

    def __init__(self, layers: Mapping[nn.Linear, Bits]) -> None:
        size = sum(_padded_rows(layer.weight) * layer.in_features * _BYTES[bits] for layer, bits in layers.items())
        self._rest = zeros_huge_pages((int(size),), torch.uint8, torch.device("cpu"))

    def copy(self, packed: torch.Tensor) -> torch.Tensor:
        """Copy the packed weights of a layer into this memory and return the copy."""
        part, self._rest = self._rest[: packed.nbytes], self._rest[packed.nbytes :]
        return part.view(packed.dtype).view(packed.shape).copy_(packed)


def rounded_to_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round weights [N, K] to int8. Return them with a float32 scale [N] for each output.

    The scale maps the largest absolute weight of an output to 127. This scheme is called W8A16, as activations stay in
    bfloat16.
    """
    scales = weight.float().abs().amax(dim=1) / 127
    scales[scales == 0] = 1
    return (weight.float() / scales[:, None]).round().to(torch.int8), scales


class PackedLinear(nn.Module):
    """Replaces an `nn.Linear` in bfloat16. It does not keep the original weight."""

    def __init__(self, layer: nn.Linear, group: PackedLinears, index: int) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.group, self._index = group, index

    @property
    def weight(self) -> torch.Tensor:
        """[out_features, in_features], for code that asks for its type or device. Who computes with it gets NaN.

        The dry run of `pack_linears` has no images. So it does not show which weights an encoder reads.
        """
        nothing = torch.tensor(float("nan"), dtype=torch.bfloat16)
        return nothing.expand(self.out_features, self.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [..., in_features] to [..., out_features]."""
        return self.group.columns(self._index, x)


def pack_linears(module: nn.Module, quantization: str | None = None, int4_scales: Int4Scales | None = None) -> Replaced:
    """Replace the linear layers of a model that the kernels support. `quantization` is `int8`, `int4` or None.

    `int4` needs what `round_linears_to_int4` has returned. A layer whose weight the model's code reads stays as it is.
    """
    parents = {layer: (parent, name) for parent, name, layer in _linears(module)}
    siblings_found, read = _siblings(module, parents)
    for layer in read:
        del parents[layer]
    if not parents:
        return []
    replaced: Replaced = []
    bits = {layer: _bits(module, layer, quantization) for layer in parents}
    room = WeightRoom(bits)
    for siblings in siblings_found:
        group = PackedLinears(siblings, room, bits[siblings[0]], int4_scales)
        for index, layer in enumerate(siblings):
            parent, name = parents[layer]
            setattr(parent, name, PackedLinear(layer, group, index))
            replaced.append((parent, name, layer))
    return replaced


@torch.no_grad()
def round_linears_to_int4(module: nn.Module) -> Int4Scales:
    """Round the weights in place that `pack_linears` packs in int4. Return their scales."""
    found = {}
    for layer in {layer for _, _, layer in _linears(module) if _bits(module, layer, "int4") == 4}:
        whole, scales = rounded_to_int4(layer.weight)
        layer.weight.copy_(whole * scales.repeat_interleave(GROUP, dim=1))
        found[layer] = scales
    return found


def _bits(module: Any, layer: nn.Linear, quantization: str | None) -> Bits:
    """In int4, the head stays in int8, as in llama.cpp, and so do layers without whole groups of inputs."""
    if quantization is None:
        return 16
    head = module.get_output_embeddings()
    # In a divided model, the head is a module around the layer.
    in_head = head is not None and layer in list(head.modules())
    return 4 if quantization == "int4" and not in_head and layer.in_features % GROUP == 0 else 8


def _linears(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16 and child.in_features % 2 == 0:
                yield parent, name, child


def _siblings(
    module: nn.Module, parents: Mapping[nn.Linear, tuple[nn.Module, str]]
) -> tuple[list[list[nn.Linear]], set[nn.Linear]]:
    """Group the layers. Siblings have one parent and get the same input tensor one after the other in a dry run.

    Return also the layers without a group, whose weights the model's code reads.
    """

    calls: list[tuple[nn.Linear, torch.Tensor]] = []
    read: set[nn.Linear] = set()

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append((self, x))
            weight, bias = self._parameters["weight"], self._parameters["bias"]
            assert weight is not None
            return nn.functional.linear(x, weight, bias)

        def __getattr__(self, name: str) -> Any:
            if name == "weight":
                read.add(self)
            return super().__getattr__(name)

    for layer in parents:
        layer.__class__ = Watched
    try:
        probe_layers(module)
    finally:
        for layer in parents:
            layer.__class__ = nn.Linear
    groups: list[list[nn.Linear]] = []
    seen: set[nn.Linear] = set()
    previous: tuple[nn.Linear, torch.Tensor] | None = None
    for layer, x in calls:
        if layer in seen or layer in read:
            continue  # A layer that is called again stays in its group.
        seen.add(layer)
        is_sibling = previous is not None and previous[1] is x and parents[previous[0]][0] is parents[layer][0]
        if is_sibling:
            groups[-1].append(layer)
        else:
            groups.append([layer])
        previous = (layer, x)
    return groups + [[layer] for layer in parents if layer not in seen | read], read


def _padded_rows(weight: torch.Tensor) -> int:
    return -(-weight.shape[0] // _PANEL) * _PANEL


def _joint_bias(layers: Sequence[nn.Linear]) -> torch.Tensor | None:
    """The biases of all layers as float32 [padded rows], 0 for a layer without one; None if no layer has one."""
    if all(layer.bias is None for layer in layers):
        return None
    bias = torch.zeros(sum(_padded_rows(layer.weight) for layer in layers))
    first = 0
    for layer in layers:
        if layer.bias is not None:
            bias[first : first + layer.out_features] = layer.bias
        first += _padded_rows(layer.weight)
    return bias


def _padded(rows: torch.Tensor, value: float = 0) -> torch.Tensor:
    missing = _padded_rows(rows) - rows.shape[0]
    return nn.functional.pad(rows, (0, 0, 0, missing), value=value) if missing else rows
