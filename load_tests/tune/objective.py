"""What settings are chosen for."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from load_tests.arrivals import Floats
from load_tests.capacity.level import percentile
from load_tests.slo import Slo

_BEYOND_TARGETS = 1e6
"""Loss of settings that only just miss the targets. Every loss within the targets is smaller."""


class Served(Protocol):
    """A served load, in the simulator (`Result`) or on a real server (`Run`)."""

    @property
    def throughput(self) -> float:
        """Output tokens per second."""

    @property
    def output_tokens(self) -> int:
        """Output tokens of the requests that were answered."""

    @property
    def busy_seconds(self) -> float:
        """Time during which at least one request was waiting or running, in seconds."""

    @property
    def ttft(self) -> Floats:
        """Time to first token of each answered request, in seconds, shape [requests]."""

    @property
    def e2e(self) -> Floats:
        """Time to the last token of each answered request, in seconds, shape [requests]."""

    def ttft_shares(self, slo: Slo) -> Floats:
        """Time to first token of every request over its target, which is its own or else the objective's. Infinite for
        requests that were not answered. Shape [requests]."""

    def itl(self, percent: float) -> float:
        """Percentile of the times between tokens, in seconds."""

    def goodput(self, slo: Slo) -> float:
        """Requests per second that met an objective for latencies."""

    def without_first(self, count: int) -> "Served":
        """The requests after the first `count`."""


@dataclass(frozen=True)
class Objective:
    """A measure to improve. `targets` are the objective for latencies that `goodput` and `cost` keep to."""

    name: str
    unit: str
    measure: Callable[[Served, Slo], float]
    targets: Slo
    higher_is_better: bool = False
    within_targets: bool = False
    """Whether settings that miss the targets are worse than all that keep them."""

    def value(self, served: Served) -> float:
        """The measure of a served load, in `unit`. If no request was answered, 0, or NaN where lower is better."""
        if not served.output_tokens:
            return 0.0 if self.higher_is_better else math.nan
        return self.measure(served, self.targets)

    def loss(self, served: Served) -> float:
        """A number that is lower for better settings."""
        if self.within_targets and (overshoot := overshoot_of(served, self.targets)) > 1:
            return _BEYOND_TARGETS * overshoot
        value = self.value(served)
        if math.isnan(value):
            return math.inf
        return -value if self.higher_is_better else value

    def gain(self, value: float, other: float) -> float:
        """By which fraction `value` is better than `other`: 0.1 for 10 % more throughput, or 10 % less latency."""
        if not other:
            return math.inf if value else 0.0
        return value / other - 1 if self.higher_is_better else 1 - value / other


def overshoot_of(served: Served, targets: Slo) -> float:
    """The larger ratio of p95 of TTFT and p99 of ITL to their targets, as `make sweep` compares them. Infinite if
    nothing was answered."""
    if not served.output_tokens:
        return math.inf
    return max(percentile(served.ttft_shares(targets), 95), served.itl(99) / targets.itl)


def _cost(served: Served, _: Slo) -> float:
    return 1e3 * served.busy_seconds / served.output_tokens


_MAKERS: Mapping[str, Callable[[Slo], Objective]] = {
    "throughput": lambda slo: Objective(
        "throughput", "output tokens/s", lambda served, _: served.throughput, slo, higher_is_better=True
    ),
    "latency": lambda slo: Objective("latency", "s, mean end to end", lambda served, _: float(served.e2e.mean()), slo),
    "ttft": lambda slo: Objective(
        "ttft", "s, p99 to the first token", lambda served, _: float(np.percentile(served.ttft, 99)), slo
    ),
    "goodput": lambda slo: Objective(
        "goodput", "requests/s within the SLO", lambda served, slo: served.goodput(slo), slo, higher_is_better=True
    ),
    "cost": lambda slo: Objective("cost", "machine s per 1,000 tokens", _cost, slo, within_targets=True),
}
OBJECTIVES = tuple(_MAKERS)


def objective(name: str, targets: Slo, users: int | None = None) -> Objective:
    """The objective with one of the names in `OBJECTIVES`.

    `users` of a closed loop send their first requests at once. These do not count for `ttft`: no later request waits
    behind so many others.
    """
    made = _MAKERS[name](targets)
    if name != "ttft" or users is None:
        return made
    return replace(made, measure=lambda served, _: made.value(served.without_first(users)))
