"""Replaces layers of a model by faster ones that compute the same."""

from collections.abc import Callable

from torch import nn


def replace_layers(
    module: nn.Module, faster: Callable[[nn.Module], nn.Module | None]
) -> list[tuple[nn.Module, str, nn.Module]]:
    """Replace each layer for which `faster` returns another one.

    Returns parent, name in the parent and original of each replaced layer.
    """
    replaced = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            fast = faster(child)
            if fast is not None:
                setattr(parent, name, fast)
                replaced.append((parent, name, child))
    return replaced
