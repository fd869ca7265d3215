"""Recursive least squares with forgetting."""

from collections.abc import Sequence

# Raising one coefficient may lower another one.
_PROJECTIONS = 8


class LeastSquares:
    """Fits `y = sum(coefficient * feature)` to samples that come one by one. Old samples lose weight.

    (Recursive least squares with exponential forgetting; Haykin, Adaptive Filter Theory.)
    """

    # The newest 350 samples have half of the weight.
    _FORGETTING = 0.998
    # Forgetting makes the covariance grow where samples do not vary, until a single unusual sample could change all
    # coefficients. So with each sample comes a weak one that one of the coefficients, each in turn, is as it is now
    # (Gunnarsson, Combining tracking and regularization in recursive least squares identification, 1996). No variance
    # then grows beyond about 2.5, and samples are forgotten all the same.
    _CONFIRMATION = 0.0032
    # Before, the coefficients are still on their way from the first ones.
    _FIRST_CONFIRMATION = 500

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
        self._num_samples = 0
        self.coefficients = tuple(first)
        """None is negative."""

    def observe(self, features: Sequence[float], y: float) -> None:
        """Learn from a sample."""
        x = [f * s for f, s in zip(features, self._scales, strict=True)]
        px = [_product(row, x) for row in self._covariance]
        scale, error = self._FORGETTING + _product(px, x), y - _product(self._weights, x)
        self._weights = [w + error * p / scale for w, p in zip(self._weights, px, strict=True)]
        self._narrow(px, scale)
        self._covariance = [[each / self._FORGETTING for each in row] for row in self._covariance]
        self._num_samples += 1
        if self._num_samples > self._FIRST_CONFIRMATION:
            self._confirm(self._num_samples % len(x))
        self._raise_to_zero()
        self.coefficients = tuple(max(0.0, w * s) for w, s in zip(self._weights, self._scales, strict=True))

    def _confirm(self, coefficient: int) -> None:
        column = self._covariance[coefficient]
        self._narrow(column, column[coefficient] + 1 / self._CONFIRMATION)

    def _narrow(self, px: Sequence[float], scale: float) -> None:
        size = range(len(px))
        self._covariance = [[self._covariance[i][j] - px[i] * px[j] / scale for j in size] for i in size]

    def _raise_to_zero(self) -> None:
        """Make no coefficient negative, at the least cost for the fit.

        Where samples hardly vary, a negative coefficient and one that is too large cancel each other out. So the others
        must change with it, as far as the samples leave it open: along a column of the covariance (Goodwin and Sin,
        Adaptive Filtering, Prediction and Control, on parameters in a convex set).
        """
        for _ in range(_PROJECTIONS):
            least = min(range(len(self._weights)), key=self._weights.__getitem__)
            weight, column = self._weights[least], self._covariance[least]
            if weight >= 0:
                return
            self._weights = [w - weight * c / column[least] for w, c in zip(self._weights, column, strict=True)]


def _product(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
