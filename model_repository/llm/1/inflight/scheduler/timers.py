"""Timers of requests."""

import itertools
import math
import sys

from sortedcontainers import SortedList

from inflight.request import Request


class Timers:
    """At most one timer per request. The cost of `due` depends on the timers that are due, not on all timers."""

    def __init__(self) -> None:
        self._sorted: SortedList[tuple[float, int, Request]] = SortedList()
        """By time, then in the order in which the timers were set."""
        self._entries: dict[str, tuple[float, int, Request]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_due(self) -> float:
        """The time of the earliest timer; infinity if there is none."""
        return float(self._sorted[0][0]) if self._sorted else math.inf

    def set(self, request: Request, when: float) -> None:
        """Set a timer for a request that has none. `when` is in seconds, on the same clock as the `now` of `due`."""
        entry = when, next(self._numbers), request
        self._entries[request.request_id] = entry
        self._sorted.add(entry)

    def clear(self, request_id: str) -> None:
        """Remove a request's timer, if it has one."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._sorted.remove(entry)

    def due(self, now: float, most: int = sys.maxsize) -> list[Request]:
        """Return the requests whose timers are due, earliest first, and remove these timers: `most` of them at most."""
        due: list[Request] = []
        while self.next_due <= now and len(due) < most:
            due.append(self._sorted.pop(0)[2])
            del self._entries[due[-1].request_id]
        return due
