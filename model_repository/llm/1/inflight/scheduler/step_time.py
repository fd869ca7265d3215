"""Predicts how long a step takes, from the steps that ran."""

import math

from inflight.scheduler.row_times import RowTimes

# Scaled features are about 1, which keeps the covariance well conditioned.
_SCALE = (1.0, 1 / 256, 1 / 4096, 1 / 65536)
_SIZE = len(_SCALE)


def attention_pairs(first: int, tokens: int) -> int:
    """Return how many (query, key) pairs attention computes for `tokens` tokens after the first `first` ones."""
    return tokens * first + tokens * (tokens + 1) // 2


class StepTimeModel:
    """`seconds = a + b * tokens + c * cached tokens read + d * pairs`, by recursive least squares with forgetting.

    To first order, the time of a step is that of the kernel launches, the matrix products (per token), reading the keys
    and values of earlier tokens, and the arithmetic of attention (per pair of query and key). Sarathi-Serve (OSDI'24)
    profiles the same quantities. Pairs matter for long prompts only: a chunk reads the earlier keys once but pairs each
    with all of its tokens. Old steps lose weight, so that the model follows a machine that gets busier.

    A row more costs little in a small step, and more in a large one. Where this was measured, `tokens` is the weight
    that `RowTimes` gives them.
    """

    # The newest 350 steps have half of the weight.
    _FORGETTING = 0.998
    _ENOUGH = 8
    # Forgetting makes the covariance grow where steps do not vary. Above this sum of variances it stops growing, or a
    # single unusual step could change the whole model.
    _MAX_VARIANCE = 10.0

    def __init__(self, row_times: RowTimes | None = None) -> None:
        """`row_times` were measured; without them, each row costs the same."""
        self._row_times = row_times
        self.num_steps = 0
        self._weights = [0.0] * _SIZE
        self.coefficients = (0.0, 0.0, 0.0, 0.0)
        """Seconds per step, per token, per cached token read and per pair. None is negative."""
        self._covariance = [[1e3 if i == j else 0.0 for j in range(_SIZE)] for i in range(_SIZE)]

    @property
    def most_rows(self) -> float:
        """The largest number of rows whose times were measured. Infinity: none were."""
        return math.inf if self._row_times is None else self._row_times.rows[-1]

    @property
    def known(self) -> bool:
        """Whether enough steps have been observed for a prediction."""
        return self.num_steps >= self._ENOUGH

    def observe(self, tokens: int, cached: int, pairs: int, seconds: float) -> None:
        """Learn from a step.

        It computed `tokens` tokens, read the keys and values of `cached` earlier ones, and had `pairs` pairs of a query
        and a key in attention.
        """
        x = [f * s for f, s in zip((1, self._weight(tokens), cached, pairs), _SCALE, strict=True)]
        px = [sum(p * v for p, v in zip(row, x, strict=True)) for row in self._covariance]
        scale = self._FORGETTING + sum(p * v for p, v in zip(px, x, strict=True))
        error = seconds - sum(w * v for w, v in zip(self._weights, x, strict=True))
        self._weights = [w + error * p / scale for w, p in zip(self._weights, px, strict=True)]
        grow = 1.0 if self._spread() > self._MAX_VARIANCE else 1 / self._FORGETTING
        self._covariance = [
            [(self._covariance[i][j] - px[i] * px[j] / scale) * grow for j in range(_SIZE)] for i in range(_SIZE)
        ]
        self.num_steps += 1
        a, b, c, d = (max(0.0, w * s) for w, s in zip(self._weights, _SCALE, strict=True))
        self.coefficients = a, b, c, d

    def _weight(self, rows: int) -> float:
        return rows if self._row_times is None else self._row_times.weight(rows)

    def _spread(self) -> float:
        return sum(self._covariance[i][i] for i in range(_SIZE))

    # Predictions are 0 while too few steps have been observed.

    def decode_seconds(self, decodes: int, cached: int) -> float:
        """Predict a step of decodes, which read `cached` cached tokens in all."""
        return self.step_seconds(decodes, cached, cached + decodes)

    def step_seconds(self, tokens: int, cached: int, pairs: int) -> float:
        """Predict any step. The arguments are those of `observe`."""
        a, b, c, d = self.coefficients if self.known else (0.0,) * _SIZE
        return a + b * self._weight(tokens) + c * cached + d * pairs

    def draft_seconds(self, rows: int, drafted: int, context: int) -> float:
        """Predict how much longer a step of `rows` tokens takes with `drafted` drafted ones, after `context` each."""
        _, b, _, d = self.coefficients if self.known else (0.0,) * _SIZE
        return b * (self._weight(rows + drafted) - self._weight(rows)) + d * drafted * context

    def prefill_seconds(self, tokens: int) -> float:
        """Predict a step that computes a prompt of `tokens` tokens and nothing else."""
        return (self.coefficients[0] if self.known else 0.0) + self.chunk_seconds(0, tokens)

    def chunk_seconds(self, first: int, tokens: int) -> float:
        """Predict how much longer a step takes with a chunk of `tokens` tokens after the first `first` ones."""
        _, b, c, d = self.coefficients if self.known else (0.0,) * _SIZE
        return b * tokens + c * first + d * attention_pairs(first, tokens)

    def chunk_within(self, first: int, seconds: float) -> float:
        """Return the number of tokens for which `chunk_seconds` is `seconds`, as a fraction and at least 0.

        Infinity if too few steps have been observed, or if the time does not depend on the number of tokens.
        """
        _, b, c, d = self.coefficients
        # b n + c first + d (n first + n (n + 1) / 2) = seconds, solved for n without cancellation.
        linear, room = b + d * (first + 0.5), max(0.0, seconds - c * first)
        if not self.known or linear == 0.0:
            return math.inf
        return 2 * room / (linear + math.sqrt(linear**2 + 2 * d * room))
