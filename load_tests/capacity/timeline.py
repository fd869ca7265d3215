"""Some seconds of the engine's trace: who waited, who was read and who was answered when."""

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
"""Names in the trace, and what they are here."""
# Process ids in the trace.
_ENGINE, _REQUESTS = 1, 2


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of a request, in seconds from the start of the timeline and cut to it."""

    phase: str
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A window into a trace."""

    load: float
    """At which it was taken."""
    seconds: float
    requests: Sequence[Sequence[Span]]
    """Each request's phases, in the order of arrival; those with none in the window are left out."""


def read_timeline(path: Path, load: float, begin: float, end: float) -> Timeline:
    """Read what a trace says of a window, given in Unix time."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    origin = next(event["args"]["unix_time"] for event in events if event["name"] == "start")
    tracks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["pid"] == _REQUESTS and event["ph"] in "BE":
            tracks[event["tid"]].append(event)
    offset = begin - origin
    # Tracks are numbered in the order of their first steps, which is not that of arrival.
    in_order = sorted(tracks.values(), key=lambda track: float(track[0]["ts"]))
    requests = [list(_spans(track, offset, end - begin)) for track in in_order]
    return Timeline(load, end - begin, [spans for spans in requests if spans])


def _spans(track: Sequence[dict[str, Any]], offset: float, seconds: float) -> Iterable[Span]:
    """A request's phases in a window; one without an end goes on to the end of the window."""
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
