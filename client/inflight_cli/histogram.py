"""Arithmetic on the cumulative buckets of Prometheus's histograms."""

import math
from collections.abc import Mapping

from inflight_client import MetricsSnapshot

Buckets = Mapping[float, float]
"""How many observations were at most each upper bound; the last bound is infinite."""


def buckets(metrics: MetricsSnapshot, name: str, **labels: str) -> Buckets:
    """The buckets of a histogram, added up over what has these labels; empty where there is none."""
    counts: dict[float, float] = {}
    for sample in metrics.select(f"{name}_bucket", **labels):
        bound = float(sample.labels["le"])
        counts[bound] = counts.get(bound, 0.0) + sample.value
    return counts


def increase(before: float, after: float) -> float:
    """What a counter gained. One that went down has begun anew at 0, as that of a model that was loaded again."""
    return after - before if after >= before else after


def gained(before: Buckets, after: Buckets) -> Buckets:
    """What a histogram gained, in its buckets; all of `after` where it has begun anew."""
    if any(count < before.get(bound, 0.0) for bound, count in after.items()):
        return after
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def quantile(share: float, counts: Buckets) -> float | None:
    """The value that a `share` (from 0 to 1) of the observations does not exceed; None where there are none.

    As Prometheus's `histogram_quantile`: values are taken as spread evenly over their bucket, of which the first begins
    at 0, and what lies beyond the last finite bound counts as that bound.
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
