"""How many tokens are expected, and what is kept free for them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.scheduler.arrival_forecast import ArrivalForecast
from inflight.scheduler.queue_policy import QueuePolicies
from tests.unit.builders import holds, make_request, make_scheduler, step

LEVELS = QueuePolicies(priority_levels=3, default_priority_level=2)
ARRIVALS = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 50), st.integers(1, 3)), max_size=30)
LOWEST = make_request("lowest", 1, priority=4)


def _taught(arrivals: list[tuple[float, int, int]], horizon: float) -> ArrivalForecast:
    forecast = ArrivalForecast(horizon)
    for at, tokens, level in arrivals:
        forecast.arrived(make_request("r", tokens, arrival=at, priority=level))
    return forecast


@given(ARRIVALS, st.floats(0.01, 10), st.floats(20, 1000), st.floats(0, 100))
def test_a_forecast_is_the_weighted_sum_of_arrivals_and_fades(
    arrivals: list[tuple[float, int, int]], horizon: float, now: float, later: float
) -> None:
    forecast = _taught(sorted(arrivals), horizon)
    span = 5 * horizon
    for level in (1, 2, 4):
        waiting = make_request("w", 1, arrival=now, priority=level)
        expected = forecast.tokens_before(waiting, now)
        by_hand = [tokens * math.exp((at - now) / span) for at, tokens, other in arrivals if other < level]
        assert expected == pytest.approx(sum(by_hand) / 5)
        assert 0 <= forecast.tokens_before(waiting, now + later) <= expected


@given(ARRIVALS, st.floats(0.01, 10))
def test_the_same_arrivals_have_the_same_forecast(arrivals: list[tuple[float, int, int]], horizon: float) -> None:
    first, second = (_taught(arrivals, horizon).tokens_before(LOWEST, 20.0) for _ in range(2))
    assert first == second


def test_a_steady_rate_is_found() -> None:
    forecast = _taught([(0.1 * number, 30, 1) for number in range(1000)], horizon=2.0)
    assert forecast.tokens_before(LOWEST, 100.0) == pytest.approx(2.0 * 300, rel=0.01)


def test_whoever_has_waited_for_a_level_is_passed_by_none_of_the_next() -> None:
    forecast = ArrivalForecast(1.0, ageing_seconds=10.0)
    for level in (1, 2):
        forecast.arrived(make_request("r", 50, arrival=100.0, priority=level))
    seen = [
        forecast.tokens_before(make_request("w", 1, arrival=100.0 - waited, priority=3), 100.0)
        for waited in (0, 9, 11, 19, 21)
    ]
    assert seen == pytest.approx([20, 20, 10, 10, 0])


def test_blocks_are_kept_for_those_who_will_go_first() -> None:
    for forecast_ms, joins in ((0.0, True), (1000.0, False)):
        scheduler = make_scheduler(num_blocks=20, block_size=1, policies=LEVELS, arrival_forecast_ms=forecast_ms)
        scheduler.add(make_request("urgent", 10, max_tokens=1, priority=1))
        assert "urgent" in step(scheduler)
        scheduler.add(make_request("going", 4, max_tokens=4, priority=1))
        assert "going" in step(scheduler)
        # 14 urgent tokens came just now, so 2.8 are expected in a second. Blocks for 3 are kept for them.
        scheduler.add(make_request("large", 12, max_tokens=2, priority=2))
        assert ("large" in step(scheduler)) == joins


def test_nobody_is_preempted_for_blocks_that_are_kept() -> None:
    settings = {"scheduling_policy": "priority", "arrival_forecast_ms": 1000.0}
    scheduler = make_scheduler(num_blocks=24, block_size=1, policies=LEVELS, **settings)
    scheduler.add(make_request("urgent", 20, max_tokens=1, priority=1))
    assert "urgent" in step(scheduler)
    scheduler.add(make_request("low", 4, max_tokens=8, priority=3))
    assert "low" in step(scheduler)
    # There is room beside `low`, but not for the 4 urgent tokens that are expected as well.
    scheduler.add(make_request("middle", 11, max_tokens=2, priority=2))
    assert "middle" in step(scheduler)
    assert scheduler.preemptor.num_preemptions == 0


def test_one_alone_is_let_in_whatever_is_expected() -> None:
    scheduler = make_scheduler(num_blocks=20, block_size=1, policies=LEVELS, arrival_forecast_ms=1000.0)
    for number in range(10):
        scheduler.add(make_request(f"urgent {number}", 15, max_tokens=1, priority=1))
    scheduler.add(make_request("large", 15, max_tokens=5, priority=2))
    for _ in range(30):
        step(scheduler)
    assert not holds(scheduler, "large")


def test_it_needs_levels_and_blocks_that_it_may_keep() -> None:
    with pytest.raises(ValueError, match="arrival_forecast_ms is 5; priority_levels is 0, it must be at least 2"):
        make_scheduler(arrival_forecast_ms=5)
    says = "arrival_forecast_ms is 5; batch_scheduler_policy must be 'max_utilization' then, not 'future_peak'"
    with pytest.raises(ValueError, match=says):
        make_scheduler(arrival_forecast_ms=5, batch_scheduler_policy="future_peak")
    with pytest.raises(ValueError, match="arrival_forecast_ms is 5; scheduling_policy must not be 'classes' then"):
        make_scheduler(arrival_forecast_ms=5, scheduling_policy="classes", request_classes={"a": {}})
