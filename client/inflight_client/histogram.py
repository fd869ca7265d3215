"""Arithmetic on Prometheus's counters and the cumulative buckets of its histograms."""

import math
from collections.abc import Iterable, Mapping

from inflight_client.metrics import Sample

Buckets = Mapping[float, float]
"""Maps each upper bound to the number of observations up to it. The last bound is infinite."""

_Series = frozenset[tuple[str, str]]
"""The labels of a time series, the server included."""


def total_gain(before: Iterable[Sample], after: Iterable[Sample]) -> float:
    """Return what the series of a counter gained together between two readings of the same servers.

    A series that is new, or that went down, started from 0, for example because its model was loaded again. A series
    that is gone gained nothing.
    """
    old = {_series(sample): sample.value for sample in before}
    return sum(_increase(old.get(_series(sample), 0.0), sample.value) for sample in after)


def gained(before: Iterable[Sample], after: Iterable[Sample]) -> Buckets:
    """Return what the series of a histogram's buckets gained together; see `total_gain`."""
    old = _histograms(before)
    counts: dict[float, float] = {}
    for series, histogram in _histograms(after).items():
        for bound, count in _bucket_gains(old.get(series, {}), histogram).items():
            counts[bound] = counts.get(bound, 0.0) + count
    return counts


def _bucket_gains(before: Buckets, after: Buckets) -> Buckets:
    """Return the increase of each bucket of a histogram, or all of `after` if the histogram started again from 0."""
    if any(count < before.get(bound, 0.0) for bound, count in after.items()):
        return after
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def _histograms(samples: Iterable[Sample]) -> dict[_Series, dict[float, float]]:
    found: dict[_Series, dict[float, float]] = {}
    for sample in samples:
        found.setdefault(_series(sample, without="le"), {})[float(sample.labels["le"])] = sample.value
    return found


def _increase(before: float, after: float) -> float:
    return after - before if after >= before else after


def _series(sample: Sample, without: str | None = None) -> _Series:
    return frozenset((name, value) for name, value in sample.labels.items() if name != without)


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
