"""What the model computed for a request in one step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, before penalties and temperature."""

    chosen: float
    rank: int
    """Rank of the chosen token among all tokens; 1 is the most likely."""
    top: dict[int, float]
    """The most likely tokens, in descending order, of equally likely ones the smaller id first."""
    others: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Log-probability and rank of each token that `logprob_token_ids` names."""

    @classmethod
    def of(cls, chosen: float, rank: int, tokens: Sequence[int], logprobs: Sequence[float]) -> "TokenLogprobs":
        """Leave out those of the most likely `tokens` that are impossible: their log-probability is minus infinity."""
        top = {token: logprob for token, logprob in zip(tokens, logprobs, strict=True) if logprob > -math.inf}
        return cls(chosen, rank, top)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The new tokens of one request, in sequence order, and what was read of its prompt."""

    token_ids: Sequence[int]
    """Empty if no token could be chosen: the logits are not numbers, or all tokens are forbidden."""
    logprobs: Sequence[TokenLogprobs] = ()
    """One entry for each of `token_ids` if the request asked for them, else empty."""
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    """One entry for each token that follows a position in `ScheduledRequest.read`, if the request wants scores."""
    states: NDArray[np.float64] | None = None
    """The sum [width] of the hidden states at these positions, if the request wants an embedding."""
    prompt_state: NDArray[np.float32] | None = None
    """The hidden state [width] of the last prompt token, with a first token if `StepPlan.shows_states`."""
    is_tainted: bool = False
    """Whether the logits after some token, also one of a draft, are not numbers. Nor may the keys and values be."""
    is_faulty: bool = False
    """Whether what was read is not a number. There are no new tokens then."""
