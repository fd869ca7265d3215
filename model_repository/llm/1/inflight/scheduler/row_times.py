"""How the time of a step grows with its rows, as measured on the machine."""

from bisect import bisect_right
from collections.abc import Sequence


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

    def seconds_of(self, rows: int) -> float:
        """Return the time of a step with so many rows. Beyond the measured numbers, the last line goes on."""
        index = min(max(1, bisect_right(self.rows, rows)), len(self.rows) - 1)
        low, high = self.rows[index - 1], self.rows[index]
        begin, end = self.seconds[index - 1], self.seconds[index]
        return max(0.0, begin + (end - begin) * (rows - low) / (high - low))
