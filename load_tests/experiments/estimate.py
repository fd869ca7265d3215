"""Measures of several runs: the mean over the seeds, and its confidence interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from load_tests.simulate.report import Column
from load_tests.simulate.result import Result

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean of independent values. Formatted, it reads `9.7 ± 0.4`."""

    mean: float
    half_width: float | None
    """Half the width of the 95 % confidence interval by Student's t distribution. None if there is only one value."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Estimate the mean of at least one value."""
        mean = float(np.mean(values))
        if len(values) == 1:
            return cls(mean, None)
        quantile = stats.t.ppf((1 + CONFIDENCE) / 2, df=len(values) - 1)
        return cls(mean, float(quantile * stats.sem(values)))

    @property
    def low(self) -> float:
        """Lower end of the interval; the value itself if there is only one."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval; the value itself if there is only one."""
        return self.mean + (self.half_width or 0.0)

    def __format__(self, form: str) -> str:
        return format(self.mean, form) + ("" if self.half_width is None else f" ± {format(self.half_width, form)}")


class Ratio(Estimate):
    """A geometric mean of independent ratios, with the interval of their logarithms: a factor of 2 one way weighs as
    much as one of 2 the other way. Formatted, it reads `9.7 (9.3 to 10.1)`.

    `half_width` is half the width of the interval of the logarithm.
    """

    @classmethod
    def of(cls, values: Sequence[float]) -> "Ratio":
        """Estimate the mean of at least one positive value."""
        logarithm = Estimate.of(np.log(values).tolist())
        return cls(float(np.exp(logarithm.mean)), logarithm.half_width)

    @property
    def low(self) -> float:
        """Lower end of the interval; the value itself if there is only one."""
        return float(self.mean / np.exp(self.half_width or 0.0))

    @property
    def high(self) -> float:
        """Upper end of the interval; the value itself if there is only one."""
        return float(self.mean * np.exp(self.half_width or 0.0))

    def __format__(self, form: str) -> str:
        interval = f" ({format(self.low, form)} to {format(self.high, form)})"
        return format(self.mean, form) + ("" if self.half_width is None else interval)


def estimate(measure: Callable[..., float], *arms: Sequence[Result]) -> Estimate:
    """Estimate a measure of one arm, or of several that are paired by seed.

    All arms of a seed have the same requests. So what a seed brings by chance is in both sides of a comparison, and a
    ratio or difference within each seed varies less than either side.

    Args:
        measure: takes one result of each arm, all of the same seed.
        arms: each arm's results by seed.
    """
    return Estimate.of([measure(*results) for results in zip(*arms, strict=True)])


def ratio(column: Column, left: Sequence[Result], right: Sequence[Result]) -> Ratio:
    """Estimate by what factor a measure, which must be positive, is larger in `left` than in `right`."""
    return Ratio.of([column.value(a) / column.value(b) for a, b in zip(left, right, strict=True)])


def difference(column: Column, left: Sequence[Result], right: Sequence[Result]) -> Estimate:
    """Estimate by how much a measure of `left` exceeds that of `right`."""
    return estimate(lambda a, b: column.value(a) - column.value(b), left, right)
