"""Replaces RMSNorm layers, which take six operators, and LayerNorm layers by one kernel each."""

import inspect
from typing import Any

import torch
from torch import nn

from inflight.model.replacement import Replaced, replace_layers

_LANES = 16
_TOLERANCE = 1e-2  # transformers' own layers round to bfloat16 twice, the kernel once.


class FastRMSNorm(nn.Module):
    """`x / rms(x) * weight` over the last dimension, computed in float32 (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, weight: torch.Tensor, eps: float, original: nn.Module) -> None:
        """`original` computes what is not in bfloat16, such as the sum of all layers in some state-space models."""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._eps = eps
        self._original = original

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [..., width]."""
        fast = x.dtype == torch.bfloat16
        y: torch.Tensor = torch.ops.inflight.rms_norm(x, self.weight, self._eps) if fast else self._original(x)
        return y


class FastLayerNorm(nn.Module):
    """`(x - mean(x)) / std(x) * weight + bias` over the last dimension, computed in float32 (arXiv 1607.06450)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, original: nn.Module) -> None:
        """`original` computes what is not in bfloat16."""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._eps = eps
        self._original = original

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [..., width]."""
        if x.dtype != torch.bfloat16:
            return self._original(x)  # type: ignore[no-any-return]
        y: torch.Tensor = torch.ops.inflight.layer_norm(x, self.weight, self.bias, self._eps)
        return y


def replace_norms(module: nn.Module) -> Replaced:
    """Replace the layers that behave like an RMSNorm or a LayerNorm, which multiply by their weight or by 1 + weight.

    A trial run decides whether a layer does.
    """
    return replace_layers(module, _fast)


def _fast(norm: Any) -> nn.Module | None:
    kind = type(norm).__name__
    if "RMSNorm" not in kind and not kind.endswith("LayerNorm"):
        return None
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, torch.Tensor) or weight.ndim != 1 or not isinstance(eps, float):
        return None
    if weight.dtype != torch.bfloat16 or weight.shape[0] % _LANES:
        return None
    if bias is not None and (not isinstance(bias, torch.Tensor) or bias.dtype != weight.dtype):
        return None
    if len(inspect.signature(norm.forward).parameters) > 1:
        return None  # Another argument may change the output.
    # The mean of each row is far from zero. A LayerNorm subtracts it, and an RMSNorm does not.
    x = torch.randn(4, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight.dtype) * 3 + 1
    if _takes(norm, torch.cat((x, x), dim=-1)):
        return None  # It does not use its weight, so the model's rows may have any width.
    try:
        wanted = norm(x).float()
    except Exception:  # noqa: BLE001 - a model's code may raise any exception, such as a norm of channels
        return None
    for factor in (weight.data, (1.0 + weight.data.float()).to(weight.dtype)):
        candidates = [FastLayerNorm(factor, None if bias is None else bias.data, eps, norm)]
        for fast in candidates if bias is not None else [FastRMSNorm(factor, eps, norm), *candidates]:
            if (fast(x).float() - wanted).norm() < _TOLERANCE * wanted.norm():
                return fast
    return None


def _takes(norm: nn.Module, x: torch.Tensor) -> bool:
    try:
        norm(x)
    except Exception:  # noqa: BLE001 - a model's code may raise any exception
        return False
    return True
