"""Plots that everybody can read."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgb

from load_tests.arrivals import Floats
from load_tests.simulate.plots import COLOURS, label_plainly, lines

SEEN = {
    "everybody": np.eye(3),
    "without green cones": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    ),
    "without red cones": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    ),
}
"""From linear RGB to what is seen (Machado, Oliveira and Fernandes, IEEE TVCG 2009)."""
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
DIFFERENT = 15
"""Distance in CIELAB. 2 is just visible side by side. For some, matplotlib's own red and green are 5 apart."""


def lab(colour: str, seen: Floats) -> Floats:
    """A colour in CIELAB, as somebody sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.clip(seen @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    x, y, z = np.cbrt(TO_XYZ @ linear / TO_XYZ.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
def test_colours_differ_for_the_colour_blind(seen: Floats) -> None:
    _, axes = pyplot.subplots()
    lines(axes, {colour: ([0, 1], [0, 1]) for colour in COLOURS}, "x", "y")
    drawn = [lab(line.get_color(), seen) for line in axes.lines]
    assert min(np.linalg.norm(one - other) for one, other in combinations(drawn, 2)) > DIFFERENT
    pyplot.close()


def test_logarithmic_axes_have_plain_numbers() -> None:
    figure, axes = pyplot.subplots()
    lines(axes, {"": ([8, 60], [0.0004, 0.005])}, "x", "y")
    axes.set(xscale="log", yscale="log")
    label_plainly(axes.xaxis, axes.yaxis)
    figure.canvas.draw()
    shown = [{label.get_text() for label in axis.get_ticklabels(which="both")} for axis in (axes.xaxis, axes.yaxis)]
    assert {"10", "20", "50"} <= shown[0]
    assert {"0.0005", "0.001", "0.002", "0.005"} <= shown[1]
    assert not any("times" in text for text in shown[0] | shown[1])
    pyplot.close()
