"""Random inputs of kernels, and how far results are from exact ones."""

import torch

LINEAR_ERROR = 3e-3
"""Products of bfloat16 numbers are exact in float32. The remaining errors are roundings of outputs."""


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative error over all elements."""
    return float((found.double() - wanted).norm() / wanted.norm())


def random(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).bfloat16()
