"""Processes of arrival times, in seconds from 0 on."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
LEAST_CV, MOST_CV = 1e-3, 1e3
"""Bounds of a coefficient of variation. Far beyond them, gamma distributions cannot be drawn from."""


class Arrivals(Protocol):
    """Draws arrival times."""

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """`count` times in ascending order, shape [count]."""


@dataclass(frozen=True)
class AllAtOnce:
    """All requests arrive at time 0, as in measurements of throughput."""

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """Zeros."""
        return np.zeros(count)


@dataclass(frozen=True)
class Gamma:
    """Independent gaps with a given coefficient of variation. 1 is a Poisson process; above 1 arrivals cluster."""

    rate: float
    """Mean number of requests per second."""
    cv: float = 1.0

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """Cumulative sums of gaps."""
        shape = self.cv**-2
        gaps = chance.gamma(shape, 1 / (self.rate * shape), count)
        if self.cv != 1:
            # Time 0 lies anywhere in a gap, and more likely in a long one. If a whole gap began there instead, a short
            # run would have more requests than its rate says (cv > 1), or fewer. A Poisson process does not remember.
            own = chance.spawn(1)[0]
            gaps[:1] = own.uniform() * own.gamma(shape + 1, 1 / (self.rate * shape))
        return np.cumsum(gaps)


@dataclass(frozen=True)
class OnOff:
    """Poisson arrivals for a while, then a pause, and so on."""

    rate: float
    """Requests per second outside the pauses."""
    on_seconds: float
    off_seconds: float

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """Poisson arrivals with the pauses inserted."""
        times = Gamma(self.rate).times(count, chance)
        return np.asarray(times + np.floor(times / self.on_seconds) * self.off_seconds)


@dataclass(frozen=True)
class Staircase:
    """Poisson arrivals whose rate changes in steps. The last rate stays."""

    rates: tuple[float, ...]
    """Requests per second in each step; positive."""
    seconds: float
    """Length of a step."""

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """Arrivals of rate 1, mapped through the inverse of the cumulative rate."""
        expected = np.cumsum(chance.exponential(1.0, count))
        starts = np.concatenate([[0.0], np.cumsum(np.array(self.rates) * self.seconds)])
        step = np.minimum(np.searchsorted(starts, expected, side="right") - 1, len(self.rates) - 1)
        return np.asarray(step * self.seconds + (expected - starts[step]) / np.array(self.rates)[step])
