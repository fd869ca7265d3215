"""Helpers for plots: one size that fits phones and wide screens, and colours that fit light and dark pages."""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np

from load_tests.arrivals import Floats
from load_tests.capacity.level import load_text, percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

matplotlib.use("Agg")

BLUE, ORANGE, GREEN, PINK, GREY = "#3b87c8", "#e08a2c", "#2fa37c", "#c75b9b", "#8a8f98"
"""Colours that are easy to see on white and on black."""
# Colour of text and lines. In a page it is replaced by the page's text colour.
INK = "#24292f"
# Fits one column on a phone without scaling. Wide pages enlarge the plot.
_INCHES_WIDE, INCHES_HIGH = 4.8, 3.6
_TITLE_CHARACTERS = 50
_MAX_TICKS = 7
# Minimum distance between two labels in a plot, as a fraction of its width or height.
_MIN_DISTANCE = 0.1
_DOTS_PER_INCH = 160

_STYLE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    "svg.hashsalt": "capacity",
}


@contextmanager
def blank(height: float = INCHES_HIGH) -> Iterator["Axes"]:
    """Yield the axes of a new figure with one plot. The figure is closed at the end."""
    from matplotlib import pyplot, style

    with style.context(_STYLE):
        figure, axes = pyplot.subplots(figsize=(_INCHES_WIDE, height), layout="constrained")
        try:
            yield axes
        finally:
            pyplot.close(figure)


def headline(axes: "Axes", title: str) -> None:
    """Put a title above a plot. It states what the plot shows."""
    axes.set_title(textwrap.fill(title, _TITLE_CHARACTERS))


def legend(axes: "Axes") -> None:
    """Put a legend below a plot if its parts have labels."""
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside lower center", ncols=2)


def svg(figure: "Figure") -> str:
    """Return a figure as an SVG element for a page. It takes the colour of the page's text."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    element = text[text.index("<svg") :].replace(INK, "currentColor")
    # A page contains several figures, and each of them would have a group with the id `axes_1`.
    return re.sub(r'<g id="[^"]*"', "<g", element)


def png(figure: "Figure", path: Path) -> None:
    """Write the figure as a PNG with a white background."""
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def load_axis(axes: "Axes", loads: Sequence[float], label: str) -> None:
    """Give the axes a logarithmic scale of loads, with labels for as many loads as fit."""
    axes.set(xscale="log", xlabel=label, xlim=(loads[0] / 1.15, loads[-1] * 1.15))
    shown = spaced(np.log(loads), np.log(loads[-1] / loads[0]) / _MAX_TICKS)
    axes.set_xticks([loads[i] for i in shown], [load_text(loads[i]) for i in shown])
    axes.set_xticks([], minor=True)


def spaced(positions: Floats, distance: float) -> list[int]:
    """Return the indices of positions to label. Positions are in ascending order; labelled ones are `distance` apart at
    least."""
    shown: list[int] = []
    for index, position in enumerate(positions):
        if not shown or position - positions[shown[-1]] >= distance:
            shown.append(index)
    return shown


def annotate(axes: "Axes", points: Sequence[tuple[float, float]], texts: Sequence[str]) -> None:
    """Label points of a curve whose axes are complete. Skip points that lie close to a labelled one."""
    named: list[Floats] = []
    for point, text in zip(points, texts, strict=True):
        position = (axes.transScale + axes.transLimits).transform(point)
        if all(np.abs(position - other).max() >= _MIN_DISTANCE for other in named):
            axes.annotate(text, point, (4, -3), textcoords="offset points", va="top", fontsize="small")
            named.append(position)


def bands(axes: "Axes", loads: Sequence[float], values: Sequence[Floats], colour: str) -> None:
    """Draw the distribution of values at each load: the middle half, the middle 90%, the median and the 99th
    percentile."""
    p5, p25, p50, p75, p95, p99 = ([percentile(of_load, p) for of_load in values] for p in (5, 25, 50, 75, 95, 99))
    axes.fill_between(loads, p5, p95, color=colour, alpha=0.2, lw=0, label="5% to 95%")
    axes.fill_between(loads, p25, p75, color=colour, alpha=0.35, lw=0, label="25% to 75%")
    axes.plot(loads, p50, color=colour, marker=".", label="median")
    axes.plot(loads, p99, color=colour, ls=":", marker=".", label="p99")


def with_spread(
    axes: "Axes",
    loads: Sequence[float],
    rows: Sequence[tuple[float, float, float]],
    colour: str,
    label: str,
) -> None:
    """Draw a curve of medians with bars from lowest to highest. `rows` are (lowest, median, highest)."""
    low, middle, high = np.array(rows).T
    bars = [(middle - low).tolist(), (high - middle).tolist()]
    axes.errorbar(loads, middle, bars, color=colour, marker=".", capsize=2, label=label)
