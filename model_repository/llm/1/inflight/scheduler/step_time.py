"""Predicts how long a step takes, from the steps that ran."""

import math


class StepTimeModel:
    """`seconds = a + b * tokens + c * cached tokens read`, fitted by recursive least squares with forgetting.

    To first order, the time of a step is that of the kernel launches, the matrix products (per token) and the attention
    (per key read). Sarathi-Serve (OSDI'24) profiles the same quantities. Old steps lose weight, so that the model
    follows a machine that gets busier.
    """

    # The newest 350 steps have half of the weight.
    _FORGETTING = 0.998
    # Features are scaled to about 1, which keeps the covariance well conditioned.
    _SCALE = (1.0, 1 / 256, 1 / 4096)
    _ENOUGH = 8
    # Forgetting makes the covariance grow where steps do not vary. Above this sum of variances it stops growing, or a
    # single unusual step could change the whole model.
    _MAX_VARIANCE = 10.0

    def __init__(self) -> None:
        self.num_steps = 0
        self._weights = [0.0, 0.0, 0.0]
        self._covariance = [[1e3 if i == j else 0.0 for j in range(3)] for i in range(3)]

    @property
    def known(self) -> bool:
        """Whether enough steps have been observed for a prediction."""
        return self.num_steps >= self._ENOUGH

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """Seconds per step, per token and per cached token read. None is negative."""
        a, b, c = (max(0.0, w * s) for w, s in zip(self._weights, self._SCALE, strict=True))
        return a, b, c

    def observe(self, tokens: int, cached: int, seconds: float) -> None:
        """Learn from a step that computed `tokens` tokens and read the keys and values of `cached` earlier ones."""
        x = [f * s for f, s in zip((1, tokens, cached), self._SCALE, strict=True)]
        px = [sum(p * v for p, v in zip(row, x, strict=True)) for row in self._covariance]
        scale = self._FORGETTING + sum(p * v for p, v in zip(px, x, strict=True))
        error = seconds - sum(w * v for w, v in zip(self._weights, x, strict=True))
        self._weights = [w + error * p / scale for w, p in zip(self._weights, px, strict=True)]
        grow = 1.0 if self._spread() > self._MAX_VARIANCE else 1 / self._FORGETTING
        self._covariance = [
            [(self._covariance[i][j] - px[i] * px[j] / scale) * grow for j in range(3)] for i in range(3)
        ]
        self.num_steps += 1

    def _spread(self) -> float:
        return sum(self._covariance[i][i] for i in range(3))

    def predict(self, tokens: int, cached: int) -> float:
        """Return the predicted seconds of such a step, or 0 while too few steps have been observed."""
        if not self.known:
            return 0.0
        a, b, c = self.coefficients
        return a + b * tokens + c * cached

    def tokens_within(self, seconds: float, cached: int) -> int | None:
        """Return the maximum number of tokens of a step that reads `cached` tokens and takes at most `seconds`.

        None if too few steps have been observed, or if the time does not depend on the number of tokens.
        """
        a, b, c = self.coefficients
        if not self.known or b == 0.0:
            return None
        return max(0, math.floor((seconds - a - c * cached) / b))
