"""The experts that the reference of the self-check chose for each token of the trial prompts.

Where two experts of a mixture are almost equally good for a token, rounding decides between them. Then the logits of
the token differ much, and tell nothing about the code under test. So this code gets the choice of the reference there.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from inflight.model.mixtures import Choice, changeable_choices, choices_changed_by, mixtures_of


class ReferenceExperts:
    """Records the choices of experts in one forward pass, and repeats those that are almost ties in others."""

    def __init__(self, module: nn.Module, tolerance: float) -> None:
        """`tolerance`: the greatest difference of weights, in order of size, that may come from rounding. It is
        relative to the token's greatest weight."""
        self._module, self._tolerance = module, tolerance
        self._choices: list[Choice] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the choices of the forward passes in this context. Their tokens are numbered in this order."""
        found: list[list[Choice]] = [[] for _ in mixtures_of(self._module)]

        def record(mixture: int, choice: Choice) -> Choice:
            found[mixture].append(choice)
            return choice

        with changeable_choices(self._module), choices_changed_by(record):
            yield
        self._choices = [Choice(*map(torch.cat, zip(*choices, strict=True))) for choices in found if choices]

    @contextmanager
    def repeated(self, tokens: Sequence[int]) -> Iterator[None]:
        """In this context, a forward pass over the tokens of these numbers has the recorded experts where its own are
        almost as good."""
        if len(self._choices) < len(mixtures_of(self._module)):  # The recorded passes did not show all choices.
            yield
            return
        wanted = [Choice(choice.experts[tokens], choice.weights[tokens]) for choice in self._choices]
        with (
            changeable_choices(self._module),
            choices_changed_by(lambda number, own: self._repeat(wanted[number], own)),
        ):
            yield

    def _repeat(self, wanted: Choice, own: Choice) -> Choice:
        if own.experts.shape != wanted.experts.shape:  # The tokens are padded.
            return own
        differ = (own.experts.sort().values != wanted.experts.sort().values).any(-1, keepdim=True)
        mine, others = (choice.weights.float().sort().values for choice in (own, wanted))
        is_tie = (mine - others).abs().amax(-1, keepdim=True) <= self._tolerance * others.abs().amax(-1, keepdim=True)
        repeats = differ & is_tie
        return Choice(*(torch.where(repeats, new, old) for new, old in zip(wanted, own, strict=True)))
