"""The loads that the search measures, on systems that are pure functions of the load."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from load_tests.capacity.search import GROWTH, PRECISION, Found, Interrupted, search


@dataclass(frozen=True)
class Outcome:
    load: float
    throughput: float
    latency: float


def full_at(slots: float) -> Callable[[float], Outcome]:
    """A system that is saturated at a load. Additional requests wait."""
    return lambda load: Outcome(load, min(load, slots), max(1.0, load / slots))


def find(
    system: Callable[[float], Outcome],
    good: Callable[[Outcome], bool],
    *,
    whole: bool = True,
    max_levels: int = 100,
) -> tuple[Found[Outcome], list[float]]:
    """The result of the search, and the loads in the order in which it measured them."""
    asked: list[float] = []

    async def measure(load: float) -> Outcome | None:
        if len(asked) == max_levels:
            return None
        asked.append(load)
        return system(load)

    return asyncio.run(search(measure, good, 1.0, whole=whole)), asked


def test_it_rises_until_more_load_brings_only_delay() -> None:
    found, asked = find(full_at(32), lambda outcome: True)
    assert asked == [1, 2, 4, 8, 16, 32, 64]
    assert "less than 5% more throughput" in found.ended
    assert found.capacity is not None
    assert (found.capacity.load, found.broken) == (64, None)


def test_it_goes_on_where_throughput_stays_but_nobody_waits_longer() -> None:
    found, asked = find(lambda load: Outcome(load, 1.0, 1.0), lambda outcome: outcome.load < 100)
    assert asked[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert found.ended == "the objective was broken at 2 levels in a row"


@pytest.mark.parametrize("boundary", [1, 2, 3, 7, 8, 9, 20, 100, 777])
def test_users_are_found_to_within_a_tenth_or_one(boundary: int) -> None:
    found, asked = find(lambda load: Outcome(load, load, 1.0), lambda outcome: outcome.load <= boundary)
    assert found.capacity is not None
    assert found.broken is not None
    assert found.capacity.load <= boundary < found.broken.load
    assert found.broken.load - found.capacity.load <= max(1, (PRECISION - 1) * found.broken.load)
    assert len(set(asked)) == len(asked)
    assert all(load == round(load) for load in asked)


@pytest.mark.parametrize("boundary", [1.03, 3.3, 47.0])
def test_rates_are_found_to_within_a_tenth(boundary: float) -> None:
    found, _ = find(lambda load: Outcome(load, load, 1.0), lambda outcome: outcome.load <= boundary, whole=False)
    assert found.capacity is not None
    assert found.broken is not None
    assert found.capacity.load <= boundary < found.broken.load <= PRECISION * found.capacity.load


def test_levels_come_back_in_the_order_of_load() -> None:
    found, asked = find(lambda load: Outcome(load, load, 1.0), lambda outcome: outcome.load <= 20)
    assert [level.load for level in found.levels] == sorted(asked)


def test_a_bad_level_below_a_good_one_was_noise() -> None:
    found, _ = find(full_at(1e9), lambda outcome: outcome.load not in (1, 4) and outcome.load <= 20)
    assert found.capacity is not None
    assert found.broken is not None
    assert found.capacity.load <= 20 < found.broken.load


def test_a_server_that_is_too_slow_for_the_least_load_has_no_capacity() -> None:
    found, asked = find(full_at(32), lambda outcome: False)
    assert asked == [1, GROWTH]
    assert found.capacity is None
    assert found.broken == found.levels[0]


@pytest.mark.parametrize("levels", [1, 3, 6])
def test_it_ends_when_the_time_is_up(levels: int) -> None:
    found, asked = find(lambda load: Outcome(load, load, 1.0), lambda outcome: outcome.load <= 3, max_levels=levels)
    assert len(found.levels) == len(asked) == min(levels, 5)
    assert (found.ended == "the time was too short for more load") == (levels < 4)


@pytest.mark.parametrize(("boundary", "between"), [(20, [23, 19, 21, 20]), (777, [724, 861, 790])])
def test_the_geometric_mean_is_next_until_a_tenth_is_left(boundary: int, between: list[int]) -> None:
    _, asked = find(lambda load: Outcome(load, load, 1.0), lambda outcome: outcome.load <= boundary)
    assert asked[-len(between) :] == between
    assert sorted(asked[: -len(between)]) == asked[: -len(between)]


@pytest.mark.parametrize("finished", [1, 3, 8])
def test_what_was_measured_before_an_interruption_is_kept(finished: int) -> None:
    def interrupted(load: float) -> Outcome:
        asked.append(load)
        if len(asked) > finished:
            raise Interrupted("it was stopped")
        return Outcome(load, load, 1.0)

    asked: list[float] = []
    found, _ = find(interrupted, lambda outcome: outcome.load <= 20)
    assert [level.load for level in found.levels] == sorted(asked[:-1])
    assert (found.ended, found.interrupted) == ("it was stopped", True)
    assert found.capacity is not None


def test_an_interruption_before_the_first_level_is_an_error() -> None:
    def interrupted(load: float) -> Outcome:
        raise Interrupted("it was stopped")

    with pytest.raises(Interrupted, match="it was stopped"):
        find(interrupted, lambda outcome: True)


def test_a_level_without_throughput_is_no_reason_to_divide_by_zero() -> None:
    found, _ = find(lambda load: Outcome(load, 0.0, 1.0), lambda outcome: outcome.load < 4)
    assert found.capacity is not None
    assert found.capacity.load == 3
