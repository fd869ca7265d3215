"""Mixtures whose experts are computed by the CPU kernels."""

from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any, TypeAlias

import torch
from torch import nn

from inflight.model.cache.huge_pages import zeros_huge_pages
from inflight.model.cpu.int4 import GROUP, multiples, pack_int4, rounded_to_int4
from inflight.model.cpu.packed_linear import Bits, rounded_to_int8
from inflight.model.mixtures import is_mixture

_PANEL = 32

ExpertScales: TypeAlias = Mapping[tuple[nn.Module, str], torch.Tensor]
"""The scales [E, N, K / 32] of weights that are already rounded to int4, by mixture and name."""


class PackedExperts:
    """The packed weights of all mixtures of a model. They take the place of the others, tensor after tensor.

    Experts are most of such a model, so there may be no memory for a second copy.
    """

    def __init__(
        self, module: nn.Module, quantization: str | None = None, int4_scales: ExpertScales | None = None
    ) -> None:
        """Let transformers' modules of experts compute with packed weights, where the kernels support them.

        `quantization` is `int8`, `int4` or None. `int4` needs what `round_experts_to_int4` has returned.
        """
        self._mixtures = list(_supported(module))
        for experts in self._mixtures:
            for name in _names(experts):
                scales = (int4_scales or {}).get((experts, name))
                _pack(experts, name, _bits(experts, name, quantization), scales)
            experts.forward = MethodType(_forward, experts)

    def undo(self) -> None:
        """Put weights in bfloat16 back into their order, and let the modules compute as before."""
        for experts in self._mixtures:
            for name in _names(experts):
                weight, bias = experts._parameters[name], _bias(experts, name)
                weight.data = _unpacked(weight.data, experts.is_transposed)
                if bias is not None:
                    bias.data = bias.data.bfloat16()
            del experts.forward


@torch.no_grad()
def round_experts_to_int4(module: nn.Module) -> ExpertScales:
    """Round the weights in place that `PackedExperts` packs in int4. Return their scales."""
    found = {}
    for experts in _supported(module):
        for name in _names(experts):
            if _bits(experts, name, "int4") == 4:
                found[experts, name] = torch.stack([_round(weight) for weight in _matrices(experts, name)])
    return found


def _round(weight: torch.Tensor) -> torch.Tensor:
    """Round weights [N, K] to int4 in place. Return their scales [N, K / 32]."""
    whole, scales = rounded_to_int4(weight)
    weight.copy_(whole * scales.repeat_interleave(GROUP, dim=1))
    return scales


def _supported(module: nn.Module) -> Iterator[Any]:
    for experts in module.modules():
        if is_mixture(experts) and all(_is_packable(experts, name) for name in _names(experts)):
            yield experts


def _is_packable(experts: Any, name: str) -> bool:
    weight = experts._parameters.get(name)
    if experts._is_expert_parallel or weight is None or weight.dtype != torch.bfloat16:
        return False
    if weight.ndim != 3 or not weight.is_contiguous():
        return False
    _, outputs, inputs = _matrices(experts, name).shape
    return outputs % _PANEL == 0 and inputs % 2 == 0


def _names(experts: Any) -> Iterator[str]:
    """The names of the weights. Those of their biases end in `_bias`, those of their scales in `_scales`."""
    yield "gate_up_proj" if experts.has_gate else "up_proj"
    yield "down_proj"


def _bias(experts: Any, name: str) -> nn.Parameter | None:
    bias: nn.Parameter | None = experts._parameters.get(f"{name}_bias")
    return bias


def _matrices(experts: Any, name: str) -> torch.Tensor:
    """Return a view [E, N, K] of weights that are not packed."""
    weights: torch.Tensor = experts._parameters[name].data
    return weights.transpose(1, 2) if experts.is_transposed else weights


def _bits(experts: Any, name: str, quantization: str | None) -> Bits:
    """In int4, weights without whole groups of inputs have int8, as in linear layers."""
    if quantization is None:
        return 16
    return 4 if quantization == "int4" and _matrices(experts, name).shape[2] % GROUP == 0 else 8


def _pack(experts: Any, name: str, bits: Bits, int4_scales: torch.Tensor | None) -> None:
    """Pack the weights of all experts: see `linear_of_experts` and its siblings in `cpp/experts.cpp`."""
    packed, scales = None, []
    matrices = _matrices(experts, name)
    for number, weight in enumerate(matrices):
        if bits == 4:
            assert int4_scales is not None
            one = pack_int4(multiples(weight.contiguous(), int4_scales[number]), int4_scales[number])
        else:
            whole, of_columns = rounded_to_int8(weight) if bits == 8 else (weight, None)
            one = torch.ops.inflight.pack_weight(whole.contiguous())
            scales += [] if of_columns is None else [of_columns]
        if packed is None:
            packed = zeros_huge_pages((len(matrices), *one.shape), one.dtype, one.device)
        packed[number] = one
    weights, bias = experts._parameters[name], _bias(experts, name)
    weights.requires_grad_(False)
    weights.data = packed
    if bias is not None:
        bias.data = bias.data.float()
    if scales:
        experts.register_buffer(f"{name}_scales", torch.stack(scales), persistent=False)


def _unpacked(packed: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    """Return weights [E, N, K], or [E, K, N] if transposed, of packed ones in bfloat16."""
    weights = packed.transpose(2, 3).reshape(len(packed), packed.shape[1] * _PANEL, packed.shape[2] * 2)
    return weights.transpose(1, 2).contiguous() if is_transposed else weights


def _forward(
    experts: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sum of the outputs [T, H] of each token's experts, like transformers' `grouped_mm`.

    hidden_states [T, H]; top_k_index [T, k], the experts of each token; top_k_weights [T, k].
    """
    chosen = top_k_index.size(-1)
    numbers, order = torch.sort(top_k_index.reshape(-1), stable=True)
    up, down = _names(experts)
    rows = torch.ops.inflight.rows_of_pairs(hidden_states.to(torch.bfloat16), order, chosen)
    inner = _linear(experts, up, rows, numbers)
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    outer = _linear(experts, down, inner, numbers)
    if experts.has_post_expert_norm:
        outer = experts.post_expert_norm(outer)
    y: torch.Tensor = torch.ops.inflight.sum_of_pairs(outer, order, top_k_weights)
    return y.to(hidden_states.dtype)


def _linear(experts: Any, name: str, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Map rows x [S, K] to [S, N], each by the expert of its number. The numbers must ascend."""
    packed, bias = getattr(experts, name), _bias(experts, name)
    y: torch.Tensor
    if packed.dtype == torch.uint8:
        y = torch.ops.inflight.linear_of_experts_int4(x, numbers, packed, bias)
    elif packed.dtype == torch.int8:
        scales = getattr(experts, f"{name}_scales")
        y = torch.ops.inflight.linear_of_experts_int8(x, numbers, packed, scales, bias)
    else:
        y = torch.ops.inflight.linear_of_experts(x, numbers, packed, bias)
    return y
