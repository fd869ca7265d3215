"""Plots of the server's own metrics and of its trace."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from load_tests.capacity.drawing import BLUE, GREEN, GREY, ORANGE, PINK, headline
from load_tests.capacity.level import Repeat
from load_tests.capacity.result import Sweep
from load_tests.capacity.server_metrics import ServerSample
from load_tests.capacity.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SINCE_START = "time since the start of the sweep (s)"
_PHASE_COLOURS = {"waiting": GREY, "prefill": ORANGE, "decode": BLUE}
_MAX_REQUESTS = 48
# Minimum height of the plot in rows, so that a single request does not fill all of it.
_MIN_ROWS = 8


def queue(sweep: Sweep, axes: "Axes") -> None:
    """Running and waiting requests over time."""
    max_waiting = max(sample.waiting for repeat in _in_time(sweep) for sample in repeat.server)
    headline(axes, f"Requests in the batch and in the queue (up to {max_waiting:.0f} waited)")
    _over_time(axes, sweep, "running", BLUE, lambda samples: [s.running for s in samples])
    _over_time(axes, sweep, "waiting", ORANGE, lambda samples: [s.waiting for s in samples])
    axes.set(xlabel=_SINCE_START, ylabel="requests", ylim=(0, None))


def prefill_and_decode(sweep: Sweep, axes: "Axes") -> None:
    """Prefill and decode tokens per second over time."""
    headline(axes, "Tokens computed: prompts (prefill) and outputs (decode)")
    _over_time(axes, sweep, "prefill", ORANGE, lambda samples: _rates(samples, lambda s: s.prefill_tokens))
    _over_time(axes, sweep, "decode", BLUE, lambda samples: _rates(samples, lambda s: s.decode_tokens))
    axes.set(xlabel=_SINCE_START, ylabel="tokens/s", ylim=(0, None))


def utilisation(sweep: Sweep, axes: "Axes") -> None:
    """Fraction of the token budget and of the KV cache in use over time."""
    headline(axes, "How full the steps and the KV cache were")
    _over_time(axes, sweep, "batch utilisation (tokens / budget)", GREEN, _utilisation)
    _over_time(axes, sweep, "KV cache", PINK, lambda samples: [100 * s.cache_usage for s in samples])
    axes.set(xlabel=_SINCE_START, ylabel="share in use (%)", ylim=(0, 105))


def batch_timeline(sweep: Sweep, axes: "Axes") -> None:
    """One line for each request, coloured by its phase over time."""
    from matplotlib.ticker import MaxNLocator

    timeline = sweep.timeline
    assert timeline is not None
    shown = timeline.requests[:_MAX_REQUESTS]
    part = f"{len(shown)} of {len(timeline.requests)} shown" if len(shown) < len(timeline.requests) else "all shown"
    headline(axes, f"Requests in the batch for {timeline.seconds:.2g} s at {sweep.kind.text(timeline.load)} ({part})")
    for phase, colour in _PHASE_COLOURS.items():
        _draw_phase(axes, timeline, phase, colour)
    axes.set(xlabel="time (s)", ylabel="requests, in the order of arrival", xlim=(0, timeline.seconds))
    axes.set_ylim(max(len(shown), _MIN_ROWS) + 0.7, 0.3)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="y", visible=False)


def _draw_phase(axes: "Axes", timeline: Timeline, phase: str, colour: str) -> None:
    spans = [
        (row, span)
        for row, request in enumerate(timeline.requests[:_MAX_REQUESTS], 1)
        for span in request
        if span.phase == phase
    ]
    if not spans:
        return
    rows, begins = [row for row, _ in spans], [span.begin for _, span in spans]
    axes.barh(rows, [span.end - span.begin for _, span in spans], left=begins, height=0.8, color=colour, label=phase)


def _over_time(
    axes: "Axes", sweep: Sweep, label: str, colour: str, values: Callable[[Sequence[ServerSample]], Sequence[float]]
) -> None:
    """Draw one curve through all repeats, with gaps between them. `values` returns one value for each sample."""
    times: list[float] = []
    heights: list[float] = []
    for repeat in _in_time(sweep):
        times += [repeat.started + sample.at for sample in repeat.server] + [np.nan]
        heights += [*values(repeat.server), np.nan]
    axes.plot(times, heights, color=colour, label=label, lw=1)


def _rates(samples: Sequence[ServerSample], count: Callable[[ServerSample], float]) -> list[float]:
    """Growth of a counter per second before each sample."""
    return [np.nan, *((count(b) - count(a)) / (b.at - a.at) for a, b in pairwise(samples))]


def _utilisation(samples: Sequence[ServerSample]) -> list[float]:
    """Computed tokens over the budget of the steps before each sample, in percent."""
    shares = [np.nan]
    for before, after in pairwise(samples):
        budget = after.budget_tokens - before.budget_tokens
        shares.append(100 * (after.computed_tokens - before.computed_tokens) / budget if budget else 0.0)
    return shares


def _in_time(sweep: Sweep) -> list[Repeat]:
    return sorted((repeat for level in sweep.levels for repeat in level.repeats), key=lambda repeat: repeat.started)
