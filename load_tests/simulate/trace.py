"""Reads the trace of an engine."""

import json
from pathlib import Path
from typing import Any


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events in an engine's `trace_file`.

    Raises:
        ValueError: the file holds something else.
        OSError: the file can't be read.
    """
    try:
        events = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no trace of an engine: {error}") from error
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{path} is no trace of an engine: it must be a list of events")
    return events
