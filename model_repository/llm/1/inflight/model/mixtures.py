"""Mixtures of experts in transformers' models, and the choice of each token's experts."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn


def is_mixture(layer: nn.Module) -> bool:
    """Whether a layer is one of transformers' modules that compute all experts of a mixture."""
    return hasattr(layer, "_is_expert_parallel")  # Only these have it.


def mixtures_of(module: nn.Module) -> list[nn.Module]:
    """Return the mixtures of a model."""
    return [layer for layer in module.modules() if is_mixture(layer)]


class Choice(NamedTuple):
    """The experts of T tokens in a mixture, and their weights, both [T, k]."""

    experts: torch.Tensor
    weights: torch.Tensor


Change: TypeAlias = Callable[[int, Choice], Choice]
"""Returns the choice that takes the place of another in the mixture of this number."""

_change: ContextVar[Change | None] = ContextVar("change", default=None)


def _chosen(experts: torch.Tensor, weights: torch.Tensor, mixture: int) -> Choice:
    change = _change.get()
    return Choice(experts, weights) if change is None else change(mixture, Choice(experts, weights))


# An operator, so that a traced graph can have it.
_LIBRARY = torch.library.Library("inflight_choice", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("chosen(Tensor experts, Tensor weights, int mixture) -> (Tensor, Tensor)")  # type: ignore[no-untyped-call]
_LIBRARY.impl("chosen", _chosen, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


@contextmanager
def changeable_choices(module: nn.Module) -> Iterator[None]:
    """In this context, forward passes ask `choices_changed_by` for their choices, and so do graphs that are traced."""
    with ExitStack() as stack:
        for number, mixture in enumerate(mixtures_of(module)):
            stack.callback(mixture.register_forward_pre_hook(partial(_choose, number)).remove)
        yield


def _choose(number: int, mixture: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if len(arguments) != 3:
        return None
    states, experts, weights = arguments
    if experts.ndim != 2 or experts.shape != weights.shape:
        return None
    return states, *torch.ops.inflight_choice.chosen(experts, weights, number)


@contextmanager
def choices_changed_by(change: Change) -> Iterator[None]:
    """In this context, `change` is asked where choices are changeable."""
    token = _change.set(change)
    try:
        yield
    finally:
        _change.reset(token)
