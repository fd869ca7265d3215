"""Plots of the clients' measures. The title of each plot states what it shows."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from load_tests.arrivals import Floats
from load_tests.capacity.columns import ITL_P99, THROUGHPUT, TTFT_P95, LevelColumn
from load_tests.capacity.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    annotate,
    bands,
    headline,
    load_axis,
    with_spread,
)
from load_tests.capacity.level import Level, Repeat, load_text
from load_tests.capacity.result import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def throughput(sweep: Sweep, axes: "Axes") -> None:
    """Tokens per second against load, with the knee and the highest load that keeps the objective."""
    knee = f"bends at {sweep.kind.text(sweep.knee.load)}" if sweep.knee else "shows no knee at these loads"
    headline(axes, f"Throughput {knee}")
    loads = _loads(sweep)
    with_spread(axes, loads, _rows(sweep, THROUGHPUT), BLUE, "median and range")
    _mark(axes, sweep)
    load_axis(axes, loads, sweep.kind.axis)
    axes.set(ylabel=THROUGHPUT.title, ylim=(0, None))


def ttft_against_throughput(sweep: Sweep, axes: "Axes") -> None:
    """p95 of the time to first token against throughput."""
    title = "What throughput costs in time to first token"
    _tradeoff(axes, sweep, title, TTFT_P95, _ttft_bound(sweep))


def itl_against_throughput(sweep: Sweep, axes: "Axes") -> None:
    """p99 of the time between tokens against throughput."""
    title = "What throughput costs in time between tokens"
    _tradeoff(axes, sweep, title, ITL_P99, 1e3 * sweep.slo.itl)


def _tradeoff(axes: "Axes", sweep: Sweep, title: str, latency: LevelColumn, bound: float | None) -> None:
    headline(axes, title)
    points = [(level.middle(THROUGHPUT.value), level.middle(latency.value)) for level in sweep.levels]
    shown = [(x, y) for x, y in points if np.isfinite(y)]
    axes.plot(
        *zip(*shown, strict=True) if shown else ([], []),
        color=BLUE,
        marker=".",
        label=f"levels, named by their {sweep.kind.unit}",
    )
    if sweep.knee:
        at = sweep.knee.middle(THROUGHPUT.value), sweep.knee.middle(latency.value)
        axes.plot(*at, "D", color=ORANGE, ms=8, mfc="none", mew=2, label="knee")
    if bound is not None:
        axes.axhline(bound, color=PINK, ls="--", label="objective")
    axes.set(xlabel=THROUGHPUT.title, ylabel=latency.title, yscale="log")
    axes.margins(x=0.12, y=0.12)
    plain_log_ticks(axes)
    finite = [level for level, (_, y) in zip(sweep.levels, points, strict=True) if np.isfinite(y)]
    annotate(axes, shown, [load_text(level.load) for level in finite])
    if hidden := len(points) - len(shown):
        axes.plot([], [], ls="", label=f"infinite, not drawn: {hidden}")


def _ttft_bound(sweep: Sweep) -> float | None:
    """None where requests have targets of their own, as there is no one bound then."""
    return None if sweep.has_own_targets else sweep.slo.ttft


def goodput(sweep: Sweep, axes: "Axes") -> None:
    """Requests per second: all of them, and those answered within the objective."""
    best = max(sweep.levels, key=lambda level: level.middle(lambda r: r.goodput(sweep.slo)))
    headline(axes, f"Goodput is highest at {sweep.kind.text(best.load)}")
    loads = _loads(sweep)
    answered = [_row(level, lambda repeat: repeat.request_rate) for level in sweep.levels]
    good = [_row(level, lambda repeat: repeat.goodput(sweep.slo)) for level in sweep.levels]
    with_spread(axes, loads, answered, GREY, "answered")
    with_spread(axes, loads, good, GREEN, "answered in the objective")
    load_axis(axes, loads, sweep.kind.axis)
    axes.set(ylabel="requests/s", ylim=(0, None))


def ttft(sweep: Sweep, axes: "Axes") -> None:
    """The distribution of times to first token at each load, of the answered requests."""
    _distribution(axes, sweep, "Time to first token", lambda run: run.counted.ttft, _ttft_bound(sweep), BLUE)


def itl(sweep: Sweep, axes: "Axes") -> None:
    """The distribution of gaps between tokens at each load."""
    title = "Time between tokens"
    _distribution(axes, sweep, title, lambda repeat: repeat.counted.gaps, sweep.slo.itl, GREEN)


def e2e(sweep: Sweep, axes: "Axes") -> None:
    """The distribution of times from request to last token at each load, of the answered requests."""
    _distribution(axes, sweep, "Time to the last token", lambda repeat: repeat.counted.e2e, None, ORANGE)


def _distribution(
    axes: "Axes", sweep: Sweep, name: str, values: Callable[[Repeat], Floats], bound: float | None, colour: str
) -> None:
    failed = any(repeat.failed for level in sweep.levels for repeat in level.repeats)
    headline(axes, f"{name} of answered requests, by load" if failed else f"{name}, by load")
    loads = _loads(sweep)
    of_levels = [np.concatenate([values(repeat) for repeat in level.repeats]) for level in sweep.levels]
    # A logarithmic scale cannot show the gap of 0 between pieces that arrived together.
    bands(axes, loads, [np.maximum(of_level, 1e-4) for of_level in of_levels], colour)
    if bound is not None:
        axes.axhline(bound, color=PINK, ls="--", label="objective")
    load_axis(axes, loads, sweep.kind.axis)
    axes.set(ylabel=f"{name.lower()} (s)", yscale="log")
    plain_log_ticks(axes)


def plain_log_ticks(axes: "Axes") -> None:
    """Label some values on a logarithmic axis of latencies in plain form: 0.1 instead of 10 to the power of -1."""
    from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

    low, high = axes.get_ylim()
    locator: Locator = LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 100 else (1.0,), numticks=12)
    if high / low < 5:
        locator = MaxNLocator(5)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _mark(axes: "Axes", sweep: Sweep) -> None:
    if sweep.knee:
        axes.axvline(sweep.knee.load, color=ORANGE, label=f"knee: {sweep.kind.text(sweep.knee.load)}")
    if sweep.capacity:
        label = f"capacity: {sweep.kind.text(sweep.capacity.load)}"
        axes.axvline(sweep.capacity.load, color=PINK, ls="--", label=label)


def _loads(sweep: Sweep) -> list[float]:
    return [level.load for level in sweep.levels]


def _rows(sweep: Sweep, column: LevelColumn) -> list[tuple[float, float, float]]:
    return [_row(level, column.value) for level in sweep.levels]


def _row(level: Level, measure: Callable[[Repeat], float]) -> tuple[float, float, float]:
    low, high = level.spread(measure)
    return low, level.middle(measure), high
