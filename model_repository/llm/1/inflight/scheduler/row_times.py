"""How the time of a step grows with its rows, as measured on the machine."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np


class RowTimes:
    """Times of steps of some numbers of rows, with straight lines between them.

    The first rows of a step may cost next to nothing, while the processor waits for the weights. Later ones cost what
    their products take.
    """

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        """`rows` rise from 1, and there are at least two. What is measured to fall with more rows counts as noise."""
        self.rows = list(rows)
        self.seconds: list[float] = []
        for each in seconds:
            self.seconds.append(max([each, *self.seconds[-1:]]))
        mean = (self.seconds[-1] - self.seconds[0]) / (self.rows[-1] - self.rows[0])
        self._weights = [1 + (each - self.seconds[0]) / mean if mean else 1.0 for each in self.seconds]

    def seconds_of(self, rows: int) -> float:
        """Return the time of a step with so many rows. More rows than were measured count as the most measured."""
        return float(np.interp(rows, self.rows, self.seconds))

    def weight(self, rows: float) -> float:
        """Return the number of rows of mean cost that cost as much as `rows` rows. For the first and the last measured
        number of rows it is that number."""
        index = min(max(1, bisect_right(self.rows, rows)), len(self.rows) - 1)
        low, high = self.rows[index - 1], self.rows[index]
        begin, end = self._weights[index - 1], self._weights[index]
        return max(0.0, begin + (end - begin) * (rows - low) / (high - low))
