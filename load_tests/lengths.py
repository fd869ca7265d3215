"""Distributions of prompt and output lengths, in tokens."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
MOST_TOKENS = 10_000_000
"""The longest prompt or output that can be asked for. No model has such a context, and the prompt still fits into the
memory of the load generator."""


class Lengths(Protocol):
    """Draws lengths."""

    @property
    def mean(self) -> float:
        """Mean length in tokens."""

    def draw(self, count: int, chance: np.random.Generator) -> Ints:
        """`count` lengths of at least 1, shape [count]."""

    def scaled(self, factor: float) -> "Lengths":
        """The same distribution with lengths multiplied by `factor`."""


@dataclass(frozen=True)
class Uniform:
    """Uniform from `low` to `high`, both included. A fixed length if they are equal."""

    low: int
    high: int

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def draw(self, count: int, chance: np.random.Generator) -> Ints:
        """Uniform draws."""
        return chance.integers(self.low, self.high, count, dtype=np.int64, endpoint=True)

    def scaled(self, factor: float) -> "Uniform":
        """Both bounds scaled."""
        return Uniform(_scale(self.low, factor), _scale(self.high, factor))


def fixed(tokens: int) -> Uniform:
    """Always the same length."""
    return Uniform(tokens, tokens)


@dataclass(frozen=True)
class Exponential:
    """Memoryless lengths up to `max`, like the outputs in Anyscale's benchmark of continuous batching."""

    scale: float
    """Mean before lengths are limited to `max`."""
    max: int

    @property
    def mean(self) -> float:
        return float(self.scale * (1 - np.exp(-self.max / self.scale)))

    def draw(self, count: int, chance: np.random.Generator) -> Ints:
        """Exponential draws, limited to `max`."""
        return _cut(chance.exponential(self.scale, count), 1, self.max)

    def scaled(self, factor: float) -> "Exponential":
        """Mean and maximum scaled."""
        return Exponential(self.scale * factor, _scale(self.max, factor))


@dataclass(frozen=True)
class LogNormal:
    """Many short lengths and a few very long ones, from `min` to `max`."""

    median: float
    sigma: float
    """Standard deviation of the natural logarithm."""
    min: int
    max: int

    @property
    def mean(self) -> float:
        """Mean length in tokens, estimated from a large draw, because the limits leave no short formula."""
        return float(self.draw(20_000, np.random.default_rng(0)).mean())

    def draw(self, count: int, chance: np.random.Generator) -> Ints:
        """Log-normal draws, limited to `min` and `max`."""
        return _cut(chance.lognormal(np.log(self.median), self.sigma, count), self.min, self.max)

    def scaled(self, factor: float) -> "LogNormal":
        """Median and limits scaled; the spread stays the same."""
        return LogNormal(self.median * factor, self.sigma, _scale(self.min, factor), _scale(self.max, factor))


def _scale(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor))


def _cut(draws: NDArray[np.float64], shortest: int, longest: int) -> Ints:
    return np.clip(np.rint(draws), shortest, longest).astype(np.int64)


# Fitted to the logarithms of the Azure LLM inference traces of November 2023 (AzurePublicDataset, CC-BY-4.0; Patel et
# al., 'Splitwise: Efficient Generative LLM Inference Using Phase Splitting', ISCA 2024): 19,366 requests of a chat
# service, 8,819 of a coding one. The bounds are the traces' shortest and longest. Prompt and output are drawn
# independently; the correlation of their logarithms is 0.09 and 0.00.
AZURE_CHAT = LogNormal(760, 0.985, 2, 14050), LogNormal(151, 0.859, 7, 1000)
"""Distributions of prompt and output lengths."""
AZURE_CODE = LogNormal(1095, 1.360, 3, 7437), LogNormal(16.3, 0.847, 6, 1899)
"""Distributions of prompt and output lengths."""
