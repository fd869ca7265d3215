"""Plots of the results of several seeds."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from load_tests.arrivals import Floats
from load_tests.experiments.estimate import estimate
from load_tests.experiments.experiment import Results
from load_tests.simulate.report import Column
from load_tests.simulate.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bars(axes: "Axes", results: Results, column: Column) -> None:
    """A bar for each arm with the mean of a measure and its confidence interval."""
    found = [estimate(column.value, runs) for runs in results.values()]
    drawn = axes.bar(list(results), [each.mean for each in found], yerr=[each.half_width or 0.0 for each in found])
    axes.bar_label(drawn, fmt=f"{{:{column.form}}}")
    axes.set_ylabel(column.name)
    axes.tick_params(axis="x", rotation=20)


def pooled(results: Results, values: Callable[[Result], Floats]) -> dict[str, Floats]:
    """The values of all seeds together, by the label of the arm."""
    return {label: np.concatenate([values(run) for run in runs]) for label, runs in results.items()}
