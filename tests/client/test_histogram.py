"""Quantiles computed from buckets, compared with the quantiles of the original numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_client.histogram import Buckets, gained, quantile, total_gain
from inflight_client.metrics import Sample, parse_metrics

BOUNDS = (0.1, 0.5, 1.0, 5.0, math.inf)
VALUES = st.lists(st.floats(0.001, 10), min_size=1, max_size=50)
SHARES = st.floats(0, 1)


def fill(values: list[float]) -> Buckets:
    return {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}


def samples(counts: Buckets, **labels: str) -> list[Sample]:
    return [Sample("seconds_bucket", {"le": str(bound), **labels}, count) for bound, count in counts.items()]


@given(values=VALUES, share=SHARES)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    true = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    upper = next(bound for bound in BOUNDS if true <= bound)
    lower = max((bound for bound in BOUNDS if bound < upper), default=0.0)
    found = quantile(share, fill(values))
    assert found is not None
    assert lower <= found <= (lower if math.isinf(upper) else upper)


@given(values=VALUES, shares=st.tuples(SHARES, SHARES))
def test_quantiles_do_not_cross(values: list[float], shares: tuple[float, float]) -> None:
    low, high = (quantile(share, fill(values)) for share in sorted(shares))
    assert low is not None
    assert high is not None
    assert low <= high


@given(before=VALUES, later=VALUES)
def test_what_is_gained_is_what_came_later(before: list[float], later: list[float]) -> None:
    assert gained(samples(fill(before)), samples(fill(before + later))) == fill(later)


@pytest.mark.parametrize(
    ("share", "expected"),
    # Four values in the first bucket, four in the second, and two above the last bound.
    [(0.0, 0.0), (0.2, 0.5), (0.4, 1.0), (0.6, 1.5), (0.8, 2.0), (0.9, 2.0), (1.0, 2.0)],
)
def test_values_are_spread_evenly_over_a_bucket(share: float, expected: float) -> None:
    assert quantile(share, {1.0: 4, 2.0: 8, math.inf: 10}) == pytest.approx(expected)


def test_where_there_is_nothing() -> None:
    assert quantile(0.5, {}) is None
    assert quantile(0.5, fill([])) is None
    assert gained([], []) == {}


def test_share_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"1\.5 is no share"):
        quantile(1.5, fill([1.0]))


@pytest.mark.parametrize(("before", "after", "gain"), [(3, 5, 2), (5, 3, 3), (None, 3, 3), (3, None, 0)])
def test_a_counter_that_is_new_or_went_down_began_anew(before: float | None, after: float | None, gain: float) -> None:
    old, new = ([] if value is None else [Sample("tokens", {}, value)] for value in (before, after))
    assert total_gain(old, new) == gain


def test_each_series_of_a_counter_begins_anew_by_itself() -> None:
    old = [Sample("tokens", {"server": "a"}, 1000), Sample("tokens", {"server": "b"}, 1000)]
    new = [Sample("tokens", {"server": "b"}, 30), Sample("tokens", {"server": "a"}, 1001)]
    assert total_gain(old, new) == 31


def test_a_histogram_that_went_down_began_anew() -> None:
    assert gained(samples(fill([0.2, 0.2])), samples(fill([0.3]))) == fill([0.3])
    assert gained([], samples(fill([0.3]))) == fill([0.3])
    old = [*samples(fill([0.2] * 9), server="a"), *samples(fill([0.2] * 9), server="b")]
    new = [*samples(fill([0.2] * 9 + [0.3]), server="a"), *samples(fill([7.0]), server="b")]
    assert gained(old, new) == fill([0.3, 7.0])


def test_buckets_of_one_model_are_added_up() -> None:
    text = """
seconds_bucket{model="llm",version="1",le="0.5"} 1
seconds_bucket{model="llm",version="1",le="+Inf"} 2
seconds_bucket{model="llm",version="2",le="0.5"} 3
seconds_bucket{model="llm",version="2",le="+Inf"} 5
seconds_bucket{model="other",version="1",le="0.5"} 100
"""
    assert gained([], parse_metrics(text).select("seconds_bucket", model="llm")) == {0.5: 4, math.inf: 7}
