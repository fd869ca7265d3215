"""The experts that the reference of the self-check chose for each token of the trial prompts.

Where two experts of a mixture are almost equally good for a token, rounding decides. The token's logits then differ by
much, in all later layers too, so they tell nothing about the code under test. So that pass may choose alike.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from inflight.model.mixtures import is_mixture


class Choice(NamedTuple):
    """The experts of T tokens in a layer, and their weights, both [T, k]."""

    experts: torch.Tensor
    weights: torch.Tensor


class ReferenceExperts:
    """Records the choices of experts in one forward pass, and repeats those that are almost ties in others."""

    def __init__(self, module: nn.Module, tolerance: float) -> None:
        """`tolerance`: the greatest difference of weights, in order of size, that may come from rounding. It is
        relative to the token's greatest weight."""
        self._mixtures = [layer for layer in module.modules() if is_mixture(layer)]
        self._tolerance = tolerance
        self._choices: list[Choice] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the choices of the forward passes in this context. Their tokens are numbered in this order."""
        found: list[list[Choice]] = [[] for _ in self._mixtures]
        with _hooked(self._mixtures, [partial(_record, choices) for choices in found]):
            yield
        self._choices = [Choice(*map(torch.cat, zip(*choices, strict=True))) for choices in found if choices]

    @contextmanager
    def repeated(self, tokens: Sequence[int]) -> Iterator[None]:
        """In this context, a forward pass over the tokens of these numbers has the recorded experts where its own are
        almost as good. A graph that was traced before is not changed."""
        if len(self._choices) < len(self._mixtures):  # A mixture was not called, or not with its choices.
            yield
            return
        wanted = [Choice(choice.experts[tokens], choice.weights[tokens]) for choice in self._choices]
        with _hooked(self._mixtures, [partial(self._repeat, choice) for choice in wanted]):
            yield

    def _repeat(self, wanted: Choice, mixture: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        own = _choice_of(arguments)
        if own is None or own.experts.shape != wanted.experts.shape:  # Its tokens are padded.
            return None
        differ = (own.experts.sort().values != wanted.experts.sort().values).any(-1, keepdim=True)
        mine, others = (choice.weights.float().sort().values for choice in (own, wanted))
        is_tie = (mine - others).abs().amax(-1, keepdim=True) <= self._tolerance * others.abs().amax(-1, keepdim=True)
        experts, weights = (torch.where(differ & is_tie, new, old) for new, old in zip(wanted, own, strict=True))
        return arguments[0], experts, weights


def _record(choices: list[Choice], mixture: nn.Module, arguments: tuple[Any, ...]) -> None:
    if (choice := _choice_of(arguments)) is not None:
        choices.append(choice)


def _choice_of(arguments: tuple[Any, ...]) -> Choice | None:
    """The choice among the arguments of a mixture: the states [T, H] of its tokens, their experts, and the weights."""
    if len(arguments) != 3:
        return None
    _, experts, weights = arguments
    return Choice(experts, weights) if experts.ndim == 2 and experts.shape == weights.shape else None


@contextmanager
def _hooked(mixtures: Sequence[nn.Module], hooks: Sequence[Callable[..., Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for mixture, hook in zip(mixtures, hooks, strict=True):
            stack.callback(mixture.register_forward_pre_hook(hook).remove)
        yield
