"""A few seconds of the engine's trace: when each request waited, was in prefill and was decoded."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHASES = {
    "queued": "waiting",
    "preempted": "waiting",
    "prefill": "prefill",
    "recompute": "prefill",
    "decode": "decode",
}
"""Names of phases in the trace, and their names in the timeline."""
# Process ids in the trace.
_ENGINE, _REQUESTS = 1, 2


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of a request. Times are seconds from the start of the timeline, clipped to it."""

    phase: str
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A window of a trace."""

    load: float
    """The load under which the trace was taken."""
    seconds: float
    requests: Sequence[Sequence[Span]]
    """The phases of each request, in the order of arrival. Requests without a phase in the window are left out."""


def read_timeline(path: Path, load: float, begin: float, end: float) -> Timeline:
    """Read a window of a trace. `begin` and `end` are Unix times."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    origin = next(event["args"]["unix_time"] for event in events if event["name"] == "start")
    tracks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["pid"] == _REQUESTS and event["ph"] in "BE":
            tracks[event["tid"]].append(event)
    offset = begin - origin
    # Tracks are numbered in the order of the requests' first steps, which can differ from the order of arrival.
    in_order = sorted(tracks.values(), key=lambda track: float(track[0]["ts"]))
    requests = [list(_spans(track, offset, end - begin)) for track in in_order]
    return Timeline(load, end - begin, [spans for spans in requests if spans])


def _spans(track: Sequence[dict[str, Any]], offset: float, seconds: float) -> Iterable[Span]:
    """A request's phases in a window. A phase without an end lasts until the end of the window."""
    open_slices: list[tuple[str, float]] = []
    for event in track:
        at = event["ts"] / 1e6 - offset
        if event["ph"] == "B":
            open_slices.append((event["name"], at))
        else:
            yield from _cut(*open_slices.pop(), at, seconds)
    for name, since in open_slices:
        yield from _cut(name, since, seconds, seconds)


def _cut(name: str, begin: float, end: float, seconds: float) -> Iterable[Span]:
    if name in PHASES and end > 0 and begin < seconds:
        yield Span(PHASES[name], max(begin, 0.0), min(end, seconds))
