"""A window of the engine's trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from load_tests.capacity.timeline import Span, read_timeline

STARTED = 1_000.0


def event(kind: str, at: float, name: str = "", track: int = 1) -> dict[str, Any]:
    return {"ph": kind, "pid": 2, "tid": track, "ts": at * 1e6, "name": name}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A request that has ended, an earlier one that still runs, and one from long before the window."""
    path = tmp_path / "trace.json"
    start = {"ph": "i", "pid": 1, "tid": 1, "ts": 0, "name": "start", "args": {"unix_time": STARTED}}
    ended = [
        *(event("B", 2.0, "request"), event("B", 2.0, "queued"), event("E", 2.5), event("B", 2.5, "prefill")),
        *(event("B", 2.5, "chunk of 8"), event("E", 2.6), event("E", 3.0), event("B", 3.0, "decode")),
        *(event("E", 4.0), event("E", 4.0)),
    ]
    running = [
        *(event("B", 1.0, "request", 2), event("B", 1.0, "decode", 2), event("E", 1.8, track=2)),
        *(event("B", 1.8, "preempted", 2), event("E", 2.2, track=2), event("B", 2.2, "recompute", 2)),
    ]
    old = [event("B", 0.0, "request", 3), event("B", 0.0, "decode", 3), event("E", 0.5, track=3)]
    path.write_text(json.dumps([start, *ended, *running, *old, event("E", 0.5, track=3)]))
    return path


def test_requests_come_in_the_order_of_arrival_and_are_cut_to_the_window(trace: Path) -> None:
    timeline = read_timeline(trace, 4, STARTED + 1.5, STARTED + 3.5)
    assert (timeline.load, timeline.seconds) == (4, 2.0)
    first, second = timeline.requests
    assert [span.phase for span in first] == ["decode", "waiting", "prefill"]
    assert first[0] == Span("decode", 0.0, pytest.approx(0.3))
    # This phase has no end yet.
    assert first[2].end == 2.0
    assert [span.phase for span in second] == ["waiting", "prefill", "decode"]
    assert second[2] == Span("decode", pytest.approx(1.5), 2.0)
