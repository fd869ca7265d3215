"""RMSNorm layers as one operator instead of six."""

from typing import Any

import torch
from torch import nn

_LANES = 16
_TOLERANCE = 1e-2  # bfloat16 rounds twice in transformers' own layers, once here.


class FastRMSNorm(nn.Module):
    """`x / rms(x) * weight` over the last dimension, in float32 inside (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., width], normalised."""
        y: torch.Tensor = torch.ops.inflight.rms_norm(x, self.weight, self._eps)
        return y


def replace_norms(module: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Replace the layers that behave like an RMSNorm, with a weight or, as in Gemma, with one plus a weight.

    What they do is tried, not guessed from their names. Returns what was replaced: parent, name in it, original.
    """
    replaced = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            fast = _fast(child) if "RMSNorm" in type(child).__name__ else None
            if fast is not None:
                setattr(parent, name, fast)
                replaced.append((parent, name, child))
    return replaced


def _fast(norm: Any) -> FastRMSNorm | None:
    weight = getattr(norm, "weight", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, torch.Tensor) or weight.ndim != 1 or not isinstance(eps, float):
        return None
    if weight.dtype != torch.bfloat16 or weight.shape[0] % _LANES:
        return None
    x = torch.randn(4, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight.dtype) * 3
    try:
        wanted = norm(x).float()
    except TypeError:
        return None  # It takes more than one argument.
    for candidate in (weight.data, (1.0 + weight.data.float()).to(weight.dtype)):
        fast = FastRMSNorm(candidate, eps)
        if (fast(x).float() - wanted).norm() < _TOLERANCE * wanted.norm():
            return fast
    return None
