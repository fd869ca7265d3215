"""Plots of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np

from load_tests.arrivals import Floats
from load_tests.simulate.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

matplotlib.use("Agg")
_INCHES = (11, 7)


def overview(results: Mapping[str, Result], path: Path, title: str) -> None:
    """Distributions of the three latencies, and the number of running requests."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=_INCHES, layout="constrained")
    figure.suptitle(title)
    ecdf(axes[0, 0], {label: r.ttft for label, r in results.items()}, "time to first token, s")
    gap_ecdf(axes[0, 1], {label: [result] for label, result in results.items()})
    ecdf(axes[1, 0], {label: r.e2e for label, r in results.items()}, "arrival to last token, s")
    for label, result in results.items():
        axes[1, 1].plot([s.at for s in result.samples], [s.running for s in result.samples], label=label, lw=0.8)
    axes[1, 1].set(xlabel="time, s", ylabel="running requests")
    axes[0, 0].legend()
    save(figure, path)


def save(figure: object, path: Path) -> None:
    """Write a figure as PNG and close it."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    pyplot.savefig(path, dpi=120)
    pyplot.close()


def ecdf(axes: "Axes", values: Mapping[str, Floats], label: str) -> None:
    """Fraction of requests whose time is at most x, with x on a logarithmic scale."""
    for name, times in values.items():
        axes.ecdf(np.maximum(times, 1e-4), label=name)
    axes.set(xscale="log", xlabel=label, ylabel="share of requests")
    axes.grid(alpha=0.3)


def gap_ecdf(axes: "Axes", results: Mapping[str, Sequence[Result]]) -> None:
    """The tail of the gaps: the fraction of tokens that come at least x after the one before. Each name has one or
    several results, which are taken together. Both axes are logarithmic."""
    for name, runs in results.items():
        gaps, counts = np.concatenate([r.gaps for r in runs]), np.concatenate([r.gap_counts for r in runs])
        order = np.argsort(gaps)
        later = 1 - np.cumsum(counts[order]) / max(1, counts.sum())
        axes.plot(1e3 * gaps[order], np.maximum(later, 1e-6), label=name)
    axes.set(xscale="log", yscale="log", xlabel="inter-token latency, ms", ylabel="share of tokens that take longer")
    axes.set_ylim(1e-5, 1)
    axes.grid(alpha=0.3)


def lines(axes: "Axes", curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str) -> None:
    """A curve of (x, y) for each name."""
    for name, (xs, ys) in curves.items():
        axes.plot(xs, ys, label=name)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
