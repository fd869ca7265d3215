"""Replaces layers of a model by others that compute the same."""

from collections.abc import Callable

from torch import nn

Replaced = list[tuple[nn.Module, str, nn.Module]]
"""Parent, name in the parent and original of each replaced layer."""


def replace_layers(module: nn.Module, other: Callable[[nn.Module], nn.Module | None]) -> Replaced:
    """Replace each layer for which `other` returns another one."""
    replaced = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            new = other(child)
            if new is not None:
                setattr(parent, name, new)
                replaced.append((parent, name, child))
    return replaced


def restore(replaced: Replaced) -> None:
    """Put the originals back. A layer may have been replaced twice."""
    for parent, name, original in reversed(replaced):
        setattr(parent, name, original)
