"""The newest values of a measure, such as the lengths of outputs."""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable

ENOUGH = 10
"""Fewer values predict nothing."""


class NewestValues:
    """The newest `kept` whole numbers, also in sorted order."""

    def __init__(self, values: Iterable[int] = (), *, kept: int) -> None:
        self._kept = kept
        self._newest = deque(values, kept)
        self._sorted = sorted(self._newest)

    def add(self, value: int) -> None:
        """Add a value. The oldest one leaves if there are too many."""
        if len(self._newest) == self._kept:
            del self._sorted[bisect_right(self._sorted, self._newest[0]) - 1]
        self._newest.append(value)
        insort(self._sorted, value)

    def is_enough(self, over: int) -> bool:
        """Return whether enough values are over `over`."""
        return len(self._sorted) - bisect_right(self._sorted, over) >= ENOUGH

    def quantile_over(self, over: int, quantile: float) -> int:
        """Return a quantile of the values over `over`, of which there must be at least one."""
        first = bisect_right(self._sorted, over)
        return self._sorted[min(first + int((len(self._sorted) - first) * quantile), len(self._sorted) - 1)]
