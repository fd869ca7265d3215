"""Plots of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.ticker import LogLocator, NullFormatter

from load_tests.arrivals import Floats
from load_tests.simulate.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

matplotlib.use("Agg")
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#f0e442", "#661100")
"""Those of Okabe and Ito, 'Color Universal Design' (2008), and brown: also for those who cannot tell red from green."""
matplotlib.rcParams["axes.prop_cycle"] = cycler(color=COLOURS)
_INCHES = (11, 7)


def overview(results: Mapping[str, Result], path: Path, title: str) -> None:
    """Distributions of the three latencies, and the number of running requests."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=_INCHES, layout="constrained")
    figure.suptitle(title)
    draw_latencies(axes.flat[:3], results)
    for label, result in results.items():
        at, running = [s.at for s in result.samples], [s.running for s in result.samples]
        axes[1, 1].plot(at, running, drawstyle="steps-post", label=label, lw=0.8)
    axes[1, 1].set(xlabel="time, s", ylabel="running requests")
    axes[0, 0].legend()
    save(figure, path)


def draw_latencies(axes: Sequence["Axes"], results: Mapping[str, Result]) -> None:
    """Draw the distributions of TTFT, ITL and E2E. The curves of requests end at the share that was answered."""
    ttft = {label: _of_all(r.first_token - r.arrival) for label, r in results.items()}
    ecdf(axes[0], ttft, "time to first token, s")
    gap_ecdf(axes[1], {label: [result] for label, result in results.items()})
    e2e = {label: _of_all(r.finish - r.arrival) for label, r in results.items()}
    ecdf(axes[2], e2e, "arrival to last token, s")


def _of_all(times: Floats) -> Floats:
    """Times of all requests, infinite for those without an answer, whose time is NaN."""
    return np.where(np.isnan(times), np.inf, times)


def save(figure: object, path: Path) -> None:
    """Write a figure as PNG and close it."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    pyplot.savefig(path, dpi=120)
    pyplot.close()


def ecdf(axes: "Axes", values: Mapping[str, Floats], label: str) -> None:
    """Fraction of requests whose time is at most x, with x on a logarithmic scale. Infinite times are never reached."""
    for name, times in values.items():
        finite = np.sort(np.maximum(times[np.isfinite(times)], 1e-4))
        steps = np.concatenate([finite[:1], finite])
        # Without any, the name and the colour stay, so that the others have the same in all plots.
        axes.plot(steps, np.arange(len(steps)) / max(1, len(times)), drawstyle="steps-post", label=name)
    axes.set(xscale="log", xlabel=label, ylabel="share of requests", ylim=(0, 1))
    axes.grid(alpha=0.3)


def gap_ecdf(axes: "Axes", results: Mapping[str, Sequence[Result]]) -> None:
    """The tail of the gaps: the fraction of tokens that come more than x after the one before. Each name has one or
    several results, which are taken together. Both axes are logarithmic."""
    for name, runs in results.items():
        gaps, counts = np.concatenate([r.gaps for r in runs]), np.concatenate([r.gap_counts for r in runs])
        order = np.argsort(gaps)
        later = 1 - np.cumsum(counts[order]) / max(1, counts.sum())
        axes.plot(1e3 * gaps[order], np.maximum(later, 1e-6), drawstyle="steps-post", label=name)
    axes.set(xscale="log", yscale="log", xlabel="inter-token latency, ms", ylabel="share of tokens that take longer")
    axes.set_ylim(1e-5, 1)
    axes.grid(alpha=0.3)


def label_plainly(*axes: "Axis") -> None:
    """Label logarithmic axes with numbers such as 20 and 50, in place of powers of ten."""
    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def lines(axes: "Axes", curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str) -> None:
    """A curve of (x, y) for each name."""
    for name, (xs, ys) in curves.items():
        axes.plot(xs, ys, label=name)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
