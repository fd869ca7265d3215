"""When requests come: processes of arrival times, in seconds from 0 on."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


class Arrivals(Protocol):
    """Draws arrival times."""

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """`count` times in ascending order, shape [count]."""


@dataclass(frozen=True)
class AllAtOnce:
    """Everybody is there from the start: what throughput is measured with."""

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """Zeros."""
        return np.zeros(count)


@dataclass(frozen=True)
class Gamma:
    """Independent gaps with a given coefficient of variation: 1 is Poisson, above it arrivals cluster."""

    rate: float
    """Requests per second, on average."""
    cv: float = 1.0

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """A running sum of gaps."""
        shape = self.cv**-2
        return np.cumsum(chance.gamma(shape, 1 / (self.rate * shape), count))


@dataclass(frozen=True)
class OnOff:
    """Poisson arrivals for a while, none for a while, and so on."""

    rate: float
    """Requests per second while it is on."""
    on_seconds: float
    off_seconds: float

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """Poisson arrivals with the pauses put in between."""
        times = Gamma(self.rate).times(count, chance)
        return np.asarray(times + np.floor(times / self.on_seconds) * self.off_seconds)


@dataclass(frozen=True)
class Staircase:
    """Poisson arrivals whose rate changes in steps; the last rate stays."""

    rates: tuple[float, ...]
    """Requests per second of each step; over 0."""
    seconds: float
    """How long a step takes."""

    def times(self, count: int, chance: np.random.Generator) -> Floats:
        """Arrivals of rate 1, seen through the inverse of the cumulative rate."""
        expected = np.cumsum(chance.exponential(1.0, count))
        starts = np.concatenate([[0.0], np.cumsum(np.array(self.rates) * self.seconds)])
        step = np.minimum(np.searchsorted(starts, expected, side="right") - 1, len(self.rates) - 1)
        return np.asarray(step * self.seconds + (expected - starts[step]) / np.array(self.rates)[step])
