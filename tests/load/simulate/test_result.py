"""The measures of a result, on numbers that can be checked on paper."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot

from load_tests.simulate.plots import draw_latencies
from load_tests.simulate.report import cost
from load_tests.simulate.result import Result, SchedulerSample, jain, percentile, weighted_percentile
from load_tests.slo import Slo
from load_tests.traffic import Arrival

TIMES, NEVER = ("first_token", "finish"), np.full(3, np.nan)


@pytest.fixture
def result() -> Result:
    """Two requests that finish and one that is rejected."""
    return Result(
        arrivals=[
            Arrival(0.0, 5, 3, 3, tenant="a"),
            Arrival(1.0, 5, 1, 1, tenant="b", target_ttft=2.0),
            Arrival(2.0, 5, 1, 1, tenant="c"),
        ],
        arrival=np.array([0.0, 1.0, 2.0]),
        prompt=np.array([5, 5, 5]),
        output=np.array([3, 1, 1]),
        first_token=np.array([0.5, 2.5, np.nan]),
        finish=np.array([4.0, 2.5, np.nan]),
        cached=np.array([0, 0, 0]),
        preemptions=np.array([0, 0, 0]),
        gaps=np.array([0.5, 3.0]),
        gap_counts=np.array([1, 1]),
        gap_tenants=np.array([0, 0]),
        samples=[SchedulerSample(1.0, 1, {"a": 3.0, "b": 1.0}, {}), SchedulerSample(9.0, 0, {"a": 9.0, "b": 9.0}, {})],
        steps=4,
        step_seconds=3.0,
        padding_tokens=0,
        swaps=0,
    )


def test_latencies_are_those_of_finished_requests(result: Result) -> None:
    assert result.ttft.tolist() == [0.5, 1.5]
    assert result.e2e.tolist() == [4.0, 1.5]
    assert result.itl(50) == 0.5
    assert result.itl(99) == 3.0


def test_curves_of_latencies_end_at_the_share_that_was_answered(result: Result) -> None:
    """Otherwise a queue that refuses most requests would look best."""
    figure, axes = pyplot.subplots(3)
    draw_latencies(axes, {"refused one": result, "refused all": replace(result, **dict.fromkeys(TIMES, NEVER))})
    for panel, times in ((axes[0], [0.5, 0.5, 1.5]), (axes[2], [1.5, 1.5, 4.0])):
        one, everything = panel.lines
        assert one.get_xdata().tolist() == times
        assert one.get_ydata() == pytest.approx([0, 1 / 3, 2 / 3])
        assert (len(everything.get_xdata()), everything.get_label()) == (0, "refused all")
    pyplot.close(figure)


def test_throughput_and_cost_are_those_of_the_tokens_delivered(result: Result) -> None:
    assert result.throughput == 4 / 4.0
    assert cost(None).value(result) == 1000.0
    assert cost(7.2).value(result) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("slo", "good"), [(Slo(1.0, 2.0), 2), (Slo(0.4, 2.0), 1), (Slo(1.0, 1.0), 1), (Slo(0.1, 0.1), 1)]
)
def test_a_request_is_good_if_both_of_its_times_are(result: Result, slo: Slo, good: int) -> None:
    # The second request has its own target of 2 s, and no token after its first.
    assert result.attainment(slo) == pytest.approx(good / 3)
    assert result.goodput(slo) == pytest.approx(good / 4.0)


def test_fairness_is_that_of_the_time_when_requests_came(result: Result) -> None:
    assert result.fairness == jain([3.0, 1.0])


def test_a_tenant_that_is_never_served_is_treated_unfairly(result: Result) -> None:
    starving = [SchedulerSample(1.0, 1, {"a": 3.0}, {"b": 1})]
    assert replace(result, samples=starving).fairness == 0.5
    assert replace(result, samples=[SchedulerSample(0.5, 1, {"a": 3.0}, {})]).fairness == 1


def test_fairness_of_requests_that_come_at_once_is_that_of_the_time_when_all_tenants_wait(result: Result) -> None:
    at_once = replace(result, arrival=np.zeros(3), arrivals=[replace(each, at=0.0) for each in result.arrivals])
    samples = [
        SchedulerSample(1.0, 1, {"a": 6.0}, {"a": 3, "b": 3, "c": 3}),
        SchedulerSample(2.0, 1, {"a": 8.0, "b": 1.0}, {"a": 1, "b": 2, "c": 3}),
        SchedulerSample(3.0, 1, {"a": 9.0, "b": 9.0, "c": 9.0}, {"a": 0, "b": 1, "c": 1}),
    ]
    assert replace(at_once, samples=samples).fairness == jain([8.0, 1.0, 0.0])


def test_padding_is_compared_with_what_was_computed(result: Result) -> None:
    # The first two requests compute 7 and 5 tokens of their own, of which the prefix cache has 4 of the second.
    assert replace(result, padding_tokens=4).padding_efficiency == 12 / 16
    assert replace(result, padding_tokens=4, cached=np.array([0, 4, 0])).padding_efficiency == 8 / 12


@pytest.mark.parametrize(
    ("shares", "index"), [([1, 1, 1, 1], 1.0), ([5, 0, 0, 0], 0.25), ([3, 1], 0.8), ([], 1.0), ([0, 0], 1.0)]
)
def test_jain(shares: list[float], index: float) -> None:
    assert jain(shares) == pytest.approx(index)


def test_weighted_percentiles_are_those_of_the_values_repeated() -> None:
    chance = np.random.default_rng(1)
    values, counts = chance.random(50), chance.integers(1, 9, 50)
    repeated = np.repeat(values, counts)
    for percent in (0, 1, 50, 99, 100):
        assert weighted_percentile(values, counts, percent) == np.percentile(repeated, percent, method="inverted_cdf")


def test_nothing_has_percentiles_of_zero() -> None:
    assert percentile(np.array([]), 99) == 0
    assert weighted_percentile(np.array([]), np.array([], dtype=np.int64), 99) == 0
