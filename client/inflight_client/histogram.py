"""Arithmetic on the cumulative buckets of Prometheus histograms."""

import math
from collections.abc import Mapping

from inflight_client.metrics import MetricsSnapshot

Buckets = Mapping[float, float]
"""Maps each upper bound to the number of observations up to it. The last bound is infinite."""


def buckets(metrics: MetricsSnapshot, name: str, **labels: str) -> Buckets:
    """Return the buckets of a histogram, summed over all series with these labels. Empty if there is no series."""
    counts: dict[float, float] = {}
    for sample in metrics.select(f"{name}_bucket", **labels):
        bound = float(sample.labels["le"])
        counts[bound] = counts.get(bound, 0.0) + sample.value
    return counts


def increase(before: float, after: float) -> float:
    """Return the increase of a counter.

    A counter that went down started again from 0, for example because its model was loaded again.
    """
    return after - before if after >= before else after


def gained(before: Buckets, after: Buckets) -> Buckets:
    """Return the increase of each bucket of a histogram, or all of `after` if the histogram started again from 0."""
    if any(count < before.get(bound, 0.0) for bound, count in after.items()):
        return after
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def quantile(share: float, counts: Buckets) -> float | None:
    """Return the quantile `share` (from 0 to 1) of the observations, or None if there are none.

    Computed like Prometheus's `histogram_quantile`. Values are assumed to be spread evenly over their bucket. The first
    bucket begins at 0. Values above the last finite bound count as that bound.
    """
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] == 0:
        return None
    rank = share * counts[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        count = counts[bound]
        if count >= rank and count > below:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    raise ValueError(f"{share} is no share from 0 to 1, or the buckets are not cumulative")
