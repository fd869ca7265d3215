"""Mixtures of experts in transformers' models."""

from torch import nn


def is_mixture(layer: nn.Module) -> bool:
    """Whether a layer is one of transformers' modules that compute all experts of a mixture."""
    return hasattr(layer, "_is_expert_parallel")  # Only these have it.
