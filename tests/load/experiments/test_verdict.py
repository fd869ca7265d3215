"""Confidence intervals, and what they decide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from load_tests.experiments.estimate import Estimate, Ratio
from load_tests.experiments.verdict import Outcome, Verdict, overall

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20).filter(lambda values: max(values) - min(values) > 1e-3)


def test_an_interval_on_paper() -> None:
    # Mean 3, standard deviation sqrt(2.5), five values; the quantile of t with 4 degrees of freedom is 2.776.
    value = Estimate.of([1, 2, 3, 4, 5])
    assert value.half_width == pytest.approx(2.776 * (2.5 / 5) ** 0.5, abs=1e-3)
    assert f"{value:.1f}" == "3.0 ± 2.0"
    assert f"{Estimate.of([0.25]):.0%}" == "25%"


@given(VALUES)
def test_the_interval_is_what_a_t_test_rejects(values: list[float]) -> None:
    value = Estimate.of(values)
    for end in (value.low, value.high):
        assert stats.ttest_1samp(values, end).pvalue == pytest.approx(0.05, rel=1e-3)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=20))
def test_it_does_not_matter_by_which_side_one_divides(values: list[float]) -> None:
    one, other = Ratio.of(values), Ratio.of([1 / value for value in values])
    assert (one.low, one.mean, one.high) == pytest.approx((1 / other.high, 1 / other.mean, 1 / other.low))
    assert f"{Ratio.of([1, 4]):.1f}".startswith("2.0 (")


@pytest.mark.parametrize(
    ("values", "above", "below"),
    [
        ([2.0, 2.1, 1.9], Outcome.CONFIRMED, Outcome.REFUTED),
        ([0.2, 0.1, 0.15], Outcome.REFUTED, Outcome.CONFIRMED),
        ([0.5, 1.0, 2.0], Outcome.UNDECIDED, Outcome.UNDECIDED),
        ([1.0, 1.0], Outcome.UNDECIDED, Outcome.UNDECIDED),
        ([1.5], Outcome.CONFIRMED, Outcome.REFUTED),
    ],
)
def test_only_a_whole_interval_decides(values: list[float], above: Outcome, below: Outcome) -> None:
    assert Verdict.above("", Estimate.of(values), 1.0).outcome is above
    assert Verdict.below("", Estimate.of(values), 1.0).outcome is below


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([5.0, 5.1, 5.2], Outcome.CONFIRMED),
        ([3.9, 4.0, 4.2], Outcome.UNDECIDED),
        ([1.0, 1.1, 1.2], Outcome.REFUTED),
        ([9.0, 9.1, 9.2], Outcome.REFUTED),
        ([0.0, 5.0, 30.0], Outcome.UNDECIDED),
    ],
)
def test_a_range_must_hold_the_whole_interval(values: list[float], outcome: Outcome) -> None:
    assert Verdict.within("", Estimate.of(values), 4.0, 8.0).outcome is outcome


def test_a_claim_is_as_good_as_its_parts() -> None:
    confirmed, refuted, undecided = (Verdict("", outcome) for outcome in Outcome)
    assert overall([confirmed, confirmed]) == "confirmed"
    assert overall([confirmed, refuted]) == overall([confirmed, undecided]) == "partly confirmed"
    assert overall([refuted, refuted]) == overall([refuted, undecided]) == "not confirmed"
    assert overall([undecided, undecided]) == "undecided"
