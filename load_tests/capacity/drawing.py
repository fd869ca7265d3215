"""How plots look: one size for phones and wide screens, and colours for light and dark pages."""

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
from load_tests.capacity.level import percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

matplotlib.use("Agg")

BLUE, ORANGE, GREEN, PINK, GREY = "#3b87c8", "#e08a2c", "#2fa37c", "#c75b9b", "#8a8f98"
"""They stand out from white as from black."""
# Everything else; in a page it becomes the colour of its text.
_INK = "#24292f"
# A column of a page on a phone, at its own size; wide pages enlarge it.
_INCHES_WIDE, INCHES_HIGH = 4.8, 3.6
_TITLE_CHARACTERS = 50
_MAX_TICKS = 7
# Between two names in a plot, as a share of its width or height.
_MIN_DISTANCE = 0.1
_DOTS_PER_INCH = 160

_STYLE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
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
    """The axes of a figure with one plot, which is forgotten at the end."""
    from matplotlib import pyplot, style

    with style.context(_STYLE):
        figure, axes = pyplot.subplots(figsize=(_INCHES_WIDE, height), layout="constrained")
        try:
            yield axes
        finally:
            pyplot.close(figure)


def headline(axes: "Axes", title: str) -> None:
    """Say above a plot what is to be seen."""
    axes.set_title(textwrap.fill(title, _TITLE_CHARACTERS))


def legend(axes: "Axes") -> None:
    """Tell below a plot what its parts are, where they have labels."""
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside lower center", ncols=2)


def svg(figure: "Figure") -> str:
    """A figure as an element of a page, in its text's colour."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    element = text[text.index("<svg") :].replace(_INK, "currentColor")
    # Several figures share a page, and each would bring a group `axes_1`.
    return re.sub(r'<g id="[^"]*"', "<g", element)


def png(figure: "Figure", path: Path) -> None:
    """The figure as a picture on white."""
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def load_axis(axes: "Axes", loads: Sequence[float], label: str) -> None:
    """Loads from left to right on a logarithmic scale, and as many of them named as fit."""
    axes.set(xscale="log", xlabel=label, xlim=(loads[0] / 1.15, loads[-1] * 1.15))
    shown = spaced(np.log(loads), np.log(loads[-1] / loads[0]) / _MAX_TICKS)
    axes.set_xticks([loads[i] for i in shown], [f"{loads[i]:.3g}" for i in shown])
    axes.set_xticks([], minor=True)


def spaced(positions: Floats, distance: float) -> list[int]:
    """Which of some positions in ascending order to name, so that those named are so far apart."""
    shown: list[int] = []
    for index, position in enumerate(positions):
        if not shown or position - positions[shown[-1]] >= distance:
            shown.append(index)
    return shown


def annotate(axes: "Axes", points: Sequence[tuple[float, float]], texts: Sequence[str]) -> None:
    """Name points of a curve whose axes are complete, but none that lies close to one that is named."""
    named: list[Floats] = []
    for point, text in zip(points, texts, strict=True):
        position = (axes.transScale + axes.transLimits).transform(point)
        if all(np.abs(position - other).max() >= _MIN_DISTANCE for other in named):
            axes.annotate(text, point, (4, -3), textcoords="offset points", va="top", fontsize="small")
            named.append(position)


def bands(axes: "Axes", loads: Sequence[float], values: Sequence[Floats], colour: str) -> None:
    """How values are distributed at each load: the middle half, 90% of them, their median and 99th percentile."""
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
    """A curve of medians with bars from the lowest to the highest; `rows` are (lowest, median, highest)."""
    low, middle, high = np.array(rows).T
    bars = [(middle - low).tolist(), (high - middle).tolist()]
    axes.errorbar(loads, middle, bars, color=colour, marker=".", capsize=2, label=label)
