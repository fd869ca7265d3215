"""What the model gave a request in one step."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, before penalties and temperature."""

    chosen: float
    rank: int
    """Rank of the chosen token among all tokens; 1 is the likeliest."""
    top: dict[int, float]
    """The likeliest tokens, best first."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The new tokens of one request, in the order of the sequence."""

    token_ids: Sequence[int]
    """Empty where the logits are not numbers, so that no token could be chosen."""
    logprobs: Sequence[TokenLogprobs] = ()
    """One entry for each of `token_ids` if the request asked for them, else empty."""
