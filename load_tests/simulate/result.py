"""The result of a workload, with the measures that papers on LLM serving use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from inflight.tenant_costs import TenantUse
from load_tests.arrivals import Floats
from load_tests.intervals import covered_seconds
from load_tests.lengths import Ints
from load_tests.slo import Slo
from load_tests.traffic import Arrival


@dataclass(frozen=True)
class SchedulerSample:
    """The scheduler's state at one moment."""

    at: float
    running: int
    service: Mapping[str, float]
    """Service that each tenant has received so far, in the prices of the Virtual Token Counter. Empty if there is one
    tenant."""
    waiting: Mapping[str, int]
    """Number of requests of each tenant that have no token yet."""
    tuned: Mapping[str, float] = field(default_factory=dict)
    """The settings that are tuned. Empty without `auto_tune`."""


@dataclass(frozen=True)
class Result:
    """Arrays have one entry per request, in the order of arrival. Times are seconds from the start."""

    arrivals: Sequence[Arrival]
    arrival: Floats
    prompt: Ints
    """Tokens."""
    output: Ints
    """Tokens."""
    first_token: Floats
    """NaN for requests that were rejected; the same holds for `finish`."""
    finish: Floats
    cached: Ints
    """Prompt tokens found in the prefix cache."""
    preemptions: Ints
    gaps: Floats
    """Times between two tokens of a request, shape [distinct gaps]."""
    gap_counts: Ints
    """Number of occurrences of each gap."""
    gap_tenants: Ints
    """The tenant of each gap: its place among the tenants' sorted names."""
    samples: Sequence[SchedulerSample]
    steps: int
    step_seconds: float
    """Total time of all steps."""
    padding_tokens: int
    swaps: int
    """Number of preemptions by swapping."""
    tenants: Mapping[str, TenantUse] = field(default_factory=dict)
    """What each tenant used. Empty without `price_per_hour`."""

    @cached_property
    def done(self) -> NDArray[np.bool_]:
        """Which requests got all their tokens, shape [requests]."""
        return ~np.isnan(self.finish)

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last token. 0 if no request was answered."""
        return float(np.nanmax(self.finish) - self.arrival[0]) if self.done.any() else 0.0

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / max(self.duration, 1e-9)

    @property
    def ttft(self) -> Floats:
        """Time to first token of each request that has one, in seconds."""
        return (self.first_token - self.arrival)[self.done]

    @property
    def e2e(self) -> Floats:
        """Time from arrival to last token of each request that has one, in seconds."""
        return (self.finish - self.arrival)[self.done]

    @property
    def busy_seconds(self) -> float:
        """Time during which at least one request that was answered was waiting or running, in seconds."""
        return covered_seconds(self.arrival[self.done], self.finish[self.done])

    @property
    def output_tokens(self) -> int:
        """Output tokens of the requests that were answered."""
        return int(self.output[self.done].sum())

    def itl(self, percent: float, tenant: str | None = None) -> float:
        """Percentile of the times between tokens, in seconds; 0 if there are none.

        It is over the tokens of all requests, or of those of a tenant.
        """
        if tenant is None:
            return weighted_percentile(self.gaps, self.gap_counts, percent)
        own = self.gap_tenants == sorted({arrival.tenant for arrival in self.arrivals}).index(tenant)
        return weighted_percentile(self.gaps[own], self.gap_counts[own], percent)

    def ttft_shares(self, slo: Slo) -> Floats:
        """Time to first token of every request, over its own target or else the objective's. Infinite for rejected
        requests."""
        targets = np.array([slo.ttft if a.target_ttft is None else a.target_ttft for a in self.arrivals])
        return np.where(self.done, (self.first_token - self.arrival) / targets, np.inf)

    def attainment(self, slo: Slo) -> float:
        """Fraction of all requests that met the objective. Rejected requests did not."""
        mean_gap = (self.finish - self.first_token) / np.maximum(self.output - 1, 1)
        # For rejected requests the times are NaN, and comparisons with NaN are false.
        return float(((self.ttft_shares(slo) <= 1) & (mean_gap <= slo.itl)).mean())

    def goodput(self, slo: Slo) -> float:
        """Requests per second that met the objective."""
        return self.attainment(slo) * len(self.arrival) / max(self.duration, 1e-9)

    @property
    def fairness(self) -> float:
        """Jain's index over the service of the tenants while requests still arrived. 1 if there is one tenant.

        If all requests arrive at once, it is over the service while each tenant had requests without a token. A tenant
        that was never served has a service of 0.
        """
        until = [sample for sample in self.samples if sample.at <= self.arrival[-1]]
        if not until:
            tenants = {arrival.tenant for arrival in self.arrivals}
            until = [sample for sample in self.samples if all(sample.waiting.get(tenant, 0) for tenant in tenants)]
        if not until:
            return 1.0
        asked = {arrival.tenant for arrival in self.arrivals if arrival.at <= until[-1].at}
        service = {**dict.fromkeys(sorted(asked), 0.0), **until[-1].service}
        return jain(list(service.values()))

    @property
    def padding_efficiency(self) -> float:
        """Fraction of the computed tokens that are a request's own, and not padding."""
        # A request's last token is sampled, and no step computes it, nor what the prefix cache has.
        own = float((self.prompt - self.cached + self.output - 1)[self.done].sum())
        return own / (own + self.padding_tokens)

    def seconds_per_thousand(self) -> float:
        """Machine time that 1,000 output tokens cost."""
        return 1e3 * self.duration / self.output_tokens

    def without_first(self, count: int) -> "Result":
        """The requests after the first `count`. What is not of single requests, such as the gaps, stays as it is."""
        later = {
            name: getattr(self, name)[count:]
            for name in ("arrivals", "arrival", "prompt", "output", "first_token", "finish", "cached", "preemptions")
        }
        return replace(self, **later)

    def busy_seconds_per_thousand(self) -> float:
        """Time of the steps for 1,000 output tokens: machine time without idle time."""
        return 1e3 * self.step_seconds / self.output_tokens

    def select(self, mask: NDArray[np.bool_]) -> "Floats":
        """Times to first token of the requests selected by `mask`, shape [requests]."""
        return (self.first_token - self.arrival)[mask & self.done]


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all shares are equal, 1/n if one has everything."""
    x = np.array(shares)
    return float(x.sum() ** 2 / (len(x) * (x**2).sum())) if x.any() else 1.0


def percentile(values: Floats, percent: float) -> float:
    """Percentile of some values; 0 if there are none."""
    return float(np.percentile(values, percent)) if len(values) else 0.0


def weighted_percentile(values: Floats, counts: Ints, percent: float) -> float:
    """The smallest value that at least `percent` % of the values don't exceed. Each value counts `counts` times. 0 if
    empty."""
    if not len(values):
        return 0.0
    order = np.argsort(values)
    reached = np.cumsum(counts[order])
    at = np.searchsorted(reached, reached[-1] * percent / 100)
    return float(values[order][min(at, len(values) - 1)])
