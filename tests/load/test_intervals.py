"""The union of intervals, compared with a count of covered unit steps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from load_tests.intervals import covered_seconds

INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)))


@given(INTERVALS)
def test_each_second_is_counted_once(intervals: list[tuple[int, int]]) -> None:
    begins = np.array([begin for begin, _ in intervals], dtype=float)
    ends = np.array([begin + length for begin, length in intervals], dtype=float)
    covered = {second for begin, length in intervals for second in range(begin, begin + length)}
    assert covered_seconds(begins, ends) == len(covered)
