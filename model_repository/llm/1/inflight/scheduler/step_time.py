"""Predicts how long a step takes, from the steps that ran."""

import math

from inflight.scheduler.least_squares import LeastSquares

SCALES = (1.0, 1 / 256, 1 / 4096, 1 / 65536)
"""Of steps, tokens, cached tokens and pairs, see `LeastSquares`."""


_STALL_RATIO, _STALL_SECONDS = 10.0, 0.5


def without_stall(seconds: float, predicted: float) -> float:
    """Return the time of a step from which to learn, which is at most ten times the predicted one, or half a second.

    A machine that stood still, such as one that was moved, says nothing of the next steps. Where all steps are as long,
    the predictions follow, as the bound grows with them.
    """
    return min(seconds, max(_STALL_RATIO * predicted, _STALL_SECONDS))


def attention_pairs(first: int, tokens: int) -> int:
    """Return how many (query, key) pairs attention computes for `tokens` tokens after the first `first` ones."""
    return tokens * first + tokens * (tokens + 1) // 2


class StepTimeModel:
    """`seconds = a + b * tokens + c * cached tokens read + d * pairs`, by recursive least squares with forgetting.

    To first order, the time of a step is that of the kernel launches, the matrix products (per token), reading the keys
    and values of earlier tokens, and the arithmetic of attention (per pair of query and key). Sarathi-Serve (OSDI'24)
    profiles the same quantities. Pairs matter for long prompts only: a chunk reads the earlier keys once but pairs each
    with all of its tokens. Old steps lose weight, so that the model follows a machine that gets busier.
    """

    _ENOUGH = 8

    most_rows = math.inf
    """The largest number of rows for which it holds."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._fit = LeastSquares(SCALES, (0.0,) * len(SCALES), variance=1e3)

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """Seconds per step, per token, per cached token read and per pair. None is negative."""
        a, b, c, d = self._fit.coefficients
        return a, b, c, d

    @property
    def known(self) -> bool:
        """Whether enough steps have been observed for a prediction."""
        return self.num_steps >= self._ENOUGH

    def observe(self, tokens: int, cached: int, pairs: int, seconds: float) -> None:
        """Learn from a step.

        It computed `tokens` tokens, read the keys and values of `cached` earlier ones, and had `pairs` pairs of a query
        and a key in attention.
        """
        if self.known:
            seconds = without_stall(seconds, self.step_seconds(tokens, cached, pairs))
        self._fit.observe((1, tokens, cached, pairs), seconds)
        self.num_steps += 1

    # Predictions are 0 while too few steps have been observed.

    def decode_seconds(self, decodes: int, cached: int) -> float:
        """Predict a step of decodes, which read `cached` cached tokens in all."""
        return self.step_seconds(decodes, cached, cached + decodes)

    def step_seconds(self, tokens: int, cached: int, pairs: int) -> float:
        """Predict any step. The arguments are those of `observe`."""
        a, b, c, d = self.coefficients if self.known else (0.0,) * len(SCALES)
        return a + b * tokens + c * cached + d * pairs

    def prefill_seconds(self, tokens: int) -> float:
        """Predict a step that computes a prompt of `tokens` tokens and nothing else."""
        return (self.coefficients[0] if self.known else 0.0) + self.chunk_seconds(0, tokens)

    def chunk_seconds(self, first: int, tokens: int) -> float:
        """Predict how much longer a step takes with a chunk of `tokens` tokens after the first `first` ones."""
        _, b, c, d = self.coefficients if self.known else (0.0,) * len(SCALES)
        return b * tokens + c * first + d * attention_pairs(first, tokens)

    def chunk_within(self, first: int, seconds: float) -> float:
        """Return the number of tokens for which `chunk_seconds` is `seconds`, as a fraction and at least 0.

        Infinity if `seconds` is, if too few steps have been observed, or if the time does not depend on the number of
        tokens.
        """
        _, b, c, d = self.coefficients
        # b n + c first + d (n first + n (n + 1) / 2) = seconds, solved for n without cancellation.
        linear, room = b + d * (first + 0.5), max(0.0, seconds - c * first)
        if not self.known or linear == 0.0 or seconds == math.inf:
            return math.inf
        return 2 * room / (linear + math.sqrt(linear**2 + 2 * d * room))
