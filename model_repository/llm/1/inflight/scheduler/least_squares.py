"""Recursive least squares with forgetting."""

from collections.abc import Sequence


class LeastSquares:
    """Fits `y = sum(coefficient * feature)` to samples that come one by one. Old samples lose weight.

    (Recursive least squares with exponential forgetting; Haykin, Adaptive Filter Theory.)
    """

    # The newest 350 samples have half of the weight.
    _FORGETTING = 0.998
    # Forgetting makes the covariance grow where samples do not vary. Above this sum of variances it stops growing, or a
    # single unusual sample could change all coefficients.
    _MAX_VARIANCE = 10.0

    def __init__(self, scales: Sequence[float], first: Sequence[float], variance: float) -> None:
        """Begin with coefficients.

        Args:
            scales: of the features; multiplied by them, features are about 1, which keeps the covariance well
                conditioned.
            first: the coefficients before the first sample.
            variance: how little these are trusted: `1 / variance` samples have as much weight.
        """
        size = len(scales)
        self._scales = list(scales)
        self._weights = [each / scale for each, scale in zip(first, scales, strict=True)]
        self._covariance = [[variance if i == j else 0.0 for j in range(size)] for i in range(size)]
        self.coefficients = tuple(first)
        """None is negative."""

    def observe(self, features: Sequence[float], y: float) -> None:
        """Learn from a sample."""
        x = [f * s for f, s in zip(features, self._scales, strict=True)]
        px = [sum(p * v for p, v in zip(row, x, strict=True)) for row in self._covariance]
        scale = self._FORGETTING + sum(p * v for p, v in zip(px, x, strict=True))
        error = y - sum(w * v for w, v in zip(self._weights, x, strict=True))
        self._weights = [w + error * p / scale for w, p in zip(self._weights, px, strict=True)]
        size = range(len(x))
        grow = 1.0 if sum(self._covariance[i][i] for i in size) > self._MAX_VARIANCE else 1 / self._FORGETTING
        self._covariance = [[(self._covariance[i][j] - px[i] * px[j] / scale) * grow for j in size] for i in size]
        self.coefficients = tuple(max(0.0, w * s) for w, s in zip(self._weights, self._scales, strict=True))
