"""What the model computed for a request in one step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, before penalties and temperature."""

    chosen: float
    rank: int
    """Rank of the chosen token among all tokens; 1 is the most likely."""
    top: dict[int, float]
    """The most likely tokens, in descending order, of equally likely ones the smaller id first."""

    @classmethod
    def of(cls, chosen: float, rank: int, tokens: Sequence[int], logprobs: Sequence[float]) -> "TokenLogprobs":
        """Leave out those of the most likely `tokens` that are impossible: their log-probability is minus infinity."""
        top = {token: logprob for token, logprob in zip(tokens, logprobs, strict=True) if logprob > -math.inf}
        return cls(chosen, rank, top)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The new tokens of one request, in sequence order."""

    token_ids: Sequence[int]
    """Empty if no token could be chosen: the logits are not numbers, or all tokens are forbidden."""
    logprobs: Sequence[TokenLogprobs] = ()
    """One entry for each of `token_ids` if the request asked for them, else empty."""
