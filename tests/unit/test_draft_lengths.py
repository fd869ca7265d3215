"""How many tokens are drafted, by what they cost and what they bring."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.scheduler.row_times import RowTimes
from inflight.speculation.draft_lengths import Outlook, draft_lengths
from inflight.speculation.measured_step_time import MeasuredStepTime


def rate(lengths: tuple[int, ...], outlooks: list[Outlook], cost: list[float], seconds: float) -> float:
    gained = sum(p**i for (p, _), length in zip(outlooks, lengths, strict=True) for i in range(1, length + 1))
    return (len(outlooks) + gained) / (seconds + cost[sum(lengths)])


@given(
    outlooks=st.lists(st.builds(Outlook, st.floats(0.01, 1.0), st.integers(1, 3)), min_size=1, max_size=4),
    rises=st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12),
    max_tokens=st.integers(0, 12),
    max_seconds=st.floats(0, 6),
)
def test_no_other_lengths_bring_tokens_much_sooner(
    outlooks: list[Outlook], rises: list[float], max_tokens: int, max_seconds: float
) -> None:
    cost = list(itertools.accumulate(rises, initial=0.0))
    lengths = draft_lengths(
        outlooks,
        tokens=len(outlooks),
        seconds=1.0,
        draft_seconds=cost.__getitem__,
        max_tokens=max_tokens,
        max_seconds=max_seconds,
    )
    assert all(0 <= length <= each.most for length, each in zip(lengths, outlooks, strict=True))
    assert sum(lengths) <= max_tokens
    assert cost[sum(lengths)] <= max_seconds
    found = rate(tuple(lengths), outlooks, cost, 1.0)
    nothing = rate((0,) * len(outlooks), outlooks, cost, 1.0)
    assert found == nothing or found > 1.029 * nothing
    for other in itertools.product(*(range(each.most + 1) for each in outlooks)):
        if sum(other) <= max_tokens and cost[sum(other)] <= max_seconds:
            # Tokens that bring next to nothing are left out.
            assert found >= min(rate(other, outlooks, cost, 1.0) - 0.12, 1.03 * nothing) / 1.031


def test_a_draft_that_costs_nothing_is_as_long_as_it_may_be() -> None:
    lengths = draft_lengths(
        [Outlook(0.9, 8), Outlook(0.9, 3)],
        tokens=2,
        seconds=0.01,
        draft_seconds=lambda count: 0.0,
        max_tokens=100,
        max_seconds=1.0,
    )
    assert lengths == [8, 3]


def test_nothing_is_drafted_where_a_row_more_costs_as_much_as_a_token() -> None:
    lengths = draft_lengths(
        [Outlook(0.9, 8)] * 64,
        tokens=64,
        seconds=0.064,
        draft_seconds=lambda count: 0.001 * count,
        max_tokens=400,
        max_seconds=1.0,
    )
    assert lengths == [0] * 64


@given(st.lists(st.floats(0.001, 1.0), min_size=2, max_size=6), st.integers(1, 100))
def test_row_times_are_those_that_were_measured_and_never_fall(seconds: list[float], rows: int) -> None:
    sizes = [1, 2, 4, 8, 16, 32][: len(seconds)]
    times = RowTimes(sizes, seconds)
    assert [times.seconds_of(size) for size in sizes] == pytest.approx(times.seconds)
    assert times.seconds_of(rows + 1) >= times.seconds_of(rows)


ROWS = [1, 2, 4, 8, 16, 32, 64]
MEASURED = RowTimes(ROWS, [max(0.08, 0.01 * count) for count in ROWS])


def test_the_first_step_is_predicted_as_it_was_measured() -> None:
    times = MeasuredStepTime(MEASURED)
    assert times.step_seconds(1, 100, 101) == pytest.approx(0.08)
    assert times.step_seconds(32, 0, 32) == pytest.approx(0.32)


def test_the_model_of_step_times_sees_that_the_first_rows_are_cheap() -> None:
    times = MeasuredStepTime(MEASURED)
    for step in range(200):  # It is in use by others, so that all takes twice as long.
        count = (1, 8, 32, 5)[step % 4]
        times.observe(count, 0, count, 2 * max(0.08, 0.01 * count))
    assert times.step_seconds(1, 0, 1) == pytest.approx(0.16, rel=0.05)
    assert times.step_seconds(8, 0, 8) == pytest.approx(0.16, rel=0.05)
    assert times.step_seconds(48, 0, 48) - times.step_seconds(32, 0, 32) == pytest.approx(0.32, rel=0.05)


def test_a_step_in_which_the_machine_stood_still_changes_little() -> None:
    times = MeasuredStepTime(MEASURED)
    for _ in range(200):
        times.observe(8, 0, 8, 0.08)
    times.observe(8, 0, 8, 30.0)
    assert times.step_seconds(8, 0, 8) == pytest.approx(0.08, rel=0.1)


def test_steps_that_are_all_alike_leave_the_cost_of_a_row_as_it_was_measured() -> None:
    times = MeasuredStepTime(MEASURED)
    for _ in range(2000):
        times.observe(32, 3200, 3232, 0.35)
    assert times.step_seconds(32, 3200, 3232) == pytest.approx(0.35, rel=0.02)
    assert times.step_seconds(64, 3200, 3264) - times.step_seconds(32, 3200, 3232) == pytest.approx(0.32, rel=0.15)
