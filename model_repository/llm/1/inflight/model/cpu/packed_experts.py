"""Mixtures whose experts are computed by the CPU kernels."""

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import nn

from inflight.model.cache.huge_pages import zeros_huge_pages
from inflight.model.mixtures import is_mixture

_PANEL = 32


class PackedExperts:
    """The packed weights of all mixtures of a model. They take the place of the others, tensor after tensor.

    Experts are most of such a model, so there may be no memory for a second copy.
    """

    def __init__(self, module: nn.Module) -> None:
        """Let transformers' modules of experts compute with packed weights, where the kernels support them."""
        self._mixtures: list[Any] = [experts for experts in module.modules() if _is_supported(experts)]
        for experts in self._mixtures:
            _convert(experts, _packed, torch.float32)
            experts.forward = MethodType(_forward, experts)

    def undo(self) -> None:
        """Put the weights back into their order, and let the modules compute as before."""
        for experts in self._mixtures:
            _convert(experts, _unpacked, torch.bfloat16)
            del experts.forward


def _convert(experts: Any, change: Callable[[torch.Tensor, bool], torch.Tensor], dtype_of_bias: torch.dtype) -> None:
    for name in _names(experts):
        weight, bias = experts._parameters[name], experts._parameters.get(f"{name}_bias")
        weight.data = change(weight.data, experts.is_transposed)
        if bias is not None:
            bias.data = bias.data.to(dtype_of_bias)


def _is_supported(experts: Any) -> bool:
    if not is_mixture(experts) or experts._is_expert_parallel:
        return False
    return all(_is_packable(experts._parameters.get(name), experts.is_transposed) for name in _names(experts))


def _is_packable(weight: torch.Tensor | None, is_transposed: bool) -> bool:
    if weight is None or weight.ndim != 3 or weight.dtype != torch.bfloat16 or not weight.is_contiguous():
        return False
    outputs, inputs = reversed(weight.shape[1:]) if is_transposed else weight.shape[1:]
    return outputs % _PANEL == 0 and inputs % 2 == 0


def _names(experts: Any) -> Iterator[str]:
    """The names of the weights. Those of their biases end in `_bias`."""
    yield "gate_up_proj" if experts.has_gate else "up_proj"
    yield "down_proj"


def _packed(weights: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    """Pack weights [E, N, K], or [E, K, N] if transposed. Return them as [E, N / 32, K / 2, 32, 2]."""
    outputs, inputs = reversed(weights.shape[1:]) if is_transposed else weights.shape[1:]
    packed = zeros_huge_pages((len(weights), outputs // _PANEL, inputs // 2, _PANEL, 2), weights.dtype, weights.device)
    for weight, to in zip(weights, packed, strict=True):
        to.copy_(torch.ops.inflight.pack_weight((weight.T if is_transposed else weight).contiguous()))
    return packed


def _unpacked(packed: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    """Undo `_packed`."""
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
    bias = getattr(experts, f"{name}_bias") if experts.has_bias else None
    y: torch.Tensor = torch.ops.inflight.linear_of_experts(x, numbers, getattr(experts, name), bias)
    return y
