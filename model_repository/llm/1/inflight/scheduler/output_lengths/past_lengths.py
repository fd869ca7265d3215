"""Lengths of past outputs, in sorted order."""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable

ENOUGH = 10
"""With fewer past outputs, nothing is predicted."""


class PastLengths:
    """The newest `kept` lengths."""

    def __init__(self, lengths: Iterable[int] = (), *, kept: int) -> None:
        self._kept = kept
        self._newest = deque(lengths, kept)
        self._sorted = sorted(self._newest)

    def add(self, length: int) -> None:
        """Add the length of an output that is complete."""
        if len(self._newest) == self._kept:
            del self._sorted[bisect_right(self._sorted, self._newest[0]) - 1]
        self._newest.append(length)
        insort(self._sorted, length)

    def is_enough(self, generated: int) -> bool:
        """Return whether enough lengths are over `generated`."""
        return len(self._sorted) - bisect_right(self._sorted, generated) >= ENOUGH

    def quantile_over(self, generated: int, quantile: float) -> int:
        """Return a quantile of the lengths over `generated`, of which there must be at least one."""
        first = bisect_right(self._sorted, generated)
        return self._sorted[min(first + int((len(self._sorted) - first) * quantile), len(self._sorted) - 1)]
