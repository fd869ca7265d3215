"""Predicts how long a step takes, from steps that were measured at load and from those that ran."""

from inflight.scheduler.least_squares import LeastSquares
from inflight.scheduler.row_times import RowTimes
from inflight.scheduler.step_time import SCALES, without_stall


class MeasuredStepTime:
    """`seconds = factor * measured(rows) + c * cached tokens read + d * pairs`, by recursive least squares.

    A row more costs little in a small step, and more in a large one. That was measured. What is learned is the factor
    for a machine that others use as well, and the cost of attention. `StepTimeModel` also learns what a step costs
    without rows, but it cannot tell that from the cost of rows where all steps have as many.
    """

    # The measured times have as much weight as so many steps.
    _STEPS_MEASURED = 10

    def __init__(self, measured: RowTimes) -> None:
        self._measured = measured
        self.most_rows = measured.rows[-1]
        """The largest number of rows that was measured."""
        scales = 1 / measured.seconds[0], *SCALES[2:]
        self._fit = LeastSquares(scales, (1.0, 0.0, 0.0), variance=1 / self._STEPS_MEASURED)

    def observe(self, tokens: int, cached: int, pairs: int, seconds: float) -> None:
        """Learn from a step. The arguments are those of `StepTimeModel.observe`."""
        seconds = without_stall(seconds, self.step_seconds(tokens, cached, pairs))
        self._fit.observe((self._measured.seconds_of(tokens), cached, pairs), seconds)

    def step_seconds(self, tokens: int, cached: int, pairs: int) -> float:
        """Predict a step."""
        factor, c, d = self._fit.coefficients
        return factor * self._measured.seconds_of(tokens) + c * cached + d * pairs
