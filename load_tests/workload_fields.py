"""The fields for lengths and arrivals in a workload file."""

import math
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

from load_tests.arrivals import LEAST_CV, MOST_CV, Arrivals, Gamma, OnOff, Staircase
from load_tests.lengths import AZURE_CHAT, AZURE_CODE, MOST_TOKENS, Exponential, Lengths, LogNormal, Uniform, fixed

Tokens: TypeAlias = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class Strict(BaseModel):
    """A mapping that accepts only known keys and values of the declared types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class FixedLength(Strict):
    """Always the same length."""

    distribution: Literal["fixed"]
    tokens: Tokens

    def lengths(self, part: int) -> Lengths:
        """The distribution. `part` is 0 for prompts and 1 for outputs; only Azure's traces distinguish them."""
        return fixed(self.tokens)


class UniformLength(Strict):
    """From `low` to `high`, both included."""

    distribution: Literal["uniform"]
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}; it must be at most high, {self.high}")
        return self

    def lengths(self, part: int) -> Lengths:
        """As `FixedLength.lengths`."""
        return Uniform(self.low, self.high)


class LogNormalLength(Strict):
    """Many short lengths and a few very long ones, limited to `min` and `max`."""

    distribution: Literal["lognormal"]
    median: PositiveFloat
    sigma: PositiveFloat
    min: Tokens = 1
    max: Tokens

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}; it must be at most max, {self.max}")
        return self

    def lengths(self, part: int) -> Lengths:
        """As `FixedLength.lengths`."""
        return LogNormal(self.median, self.sigma, self.min, self.max)


class ExponentialLength(Strict):
    """Memoryless lengths up to `max`. `mean` is the mean before lengths are limited."""

    distribution: Literal["exponential"]
    mean: PositiveFloat
    max: Tokens

    def lengths(self, part: int) -> Lengths:
        """As `FixedLength.lengths`."""
        return Exponential(self.mean, self.max)


class AzureLength(Strict):
    """Log-normal lengths fitted to one of Azure's public traces, multiplied by `scale` and limited to `max`."""

    distribution: Literal["azure_chat", "azure_code"]
    scale: PositiveFloat = 1.0
    max: Tokens | None = None

    def lengths(self, part: int) -> Lengths:
        """As `FixedLength.lengths`."""
        trace = AZURE_CHAT if self.distribution == "azure_chat" else AZURE_CODE
        found = trace[part].scaled(self.scale)
        longest = min(found.max, MOST_TOKENS if self.max is None else self.max)
        return LogNormal(found.median, found.sigma, min(found.min, longest), longest)


LengthField: TypeAlias = Annotated[
    FixedLength | UniformLength | LogNormalLength | ExponentialLength | AzureLength,
    Field(discriminator="distribution"),
]


class PoissonArrivals(Strict):
    """Independent requests."""

    process: Literal["poisson"]

    def arrivals(self, rate: float, seconds: float) -> Arrivals:
        """The process with a mean of `rate` requests per second in the first `seconds`."""
        return Gamma(rate)


class GammaArrivals(Strict):
    """Independent gaps with a coefficient of variation. Above 1 arrivals cluster; below 1 they are more even."""

    process: Literal["gamma"]
    cv: PositiveFloat

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        if not LEAST_CV <= self.cv <= MOST_CV:
            raise ValueError(f"cv is {self.cv:g}; it must be from {LEAST_CV:g} to {MOST_CV:g}")
        return self

    def arrivals(self, rate: float, seconds: float) -> Arrivals:
        """As `PoissonArrivals.arrivals`."""
        return Gamma(rate, self.cv)


class OnOffArrivals(Strict):
    """Poisson arrivals for a while, then a pause, and so on."""

    process: Literal["on_off"]
    on_seconds: PositiveFloat
    off_seconds: PositiveFloat

    def arrivals(self, rate: float, seconds: float) -> Arrivals:
        """As `PoissonArrivals.arrivals`. A run that ends during a pause, or before it, has another share of pauses than
        a long one, so the rate outside them depends on the length of the run."""
        whole, rest = divmod(seconds, self.on_seconds + self.off_seconds)
        on = whole * self.on_seconds + min(rest, self.on_seconds)
        return OnOff(rate * seconds / on, self.on_seconds, self.off_seconds)


class StaircaseArrivals(Strict):
    """Poisson arrivals whose rate changes in steps. The last rate stays."""

    process: Literal["staircase"]
    levels: Annotated[list[PositiveFloat], Field(min_length=1)]
    """The rates of the steps, relative to each other."""
    seconds: PositiveFloat
    """Length of a step."""

    def arrivals(self, rate: float, seconds: float) -> Arrivals:
        """See `PoissonArrivals.arrivals`. The mean is over the steps that such a run reaches."""
        ends = [*(number * self.seconds for number in range(1, len(self.levels))), math.inf]
        lengths = [max(0.0, min(end, seconds) - number * self.seconds) for number, end in enumerate(ends)]
        mean = sum(level * length for level, length in zip(self.levels, lengths, strict=True)) / seconds
        return Staircase(tuple(rate * level / mean for level in self.levels), self.seconds)


ArrivalField: TypeAlias = Annotated[
    PoissonArrivals | GammaArrivals | OnOffArrivals | StaircaseArrivals, Field(discriminator="process")
]
