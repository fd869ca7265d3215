"""When something is due for a request."""

import itertools
import math

from sortedcontainers import SortedList

from inflight.request import Request


class Timers:
    """One point in time for each of some requests. Costs follow what comes due, not what is pending."""

    def __init__(self) -> None:
        self._sorted: SortedList[tuple[float, int, Request]] = SortedList()
        """By time, then by when the timer was set."""
        self._entries: dict[str, tuple[float, int, Request]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_due(self) -> float:
        """The earliest time that a timer is set to; infinity if none is."""
        return float(self._sorted[0][0]) if self._sorted else math.inf

    def set(self, request: Request, when: float) -> None:
        """Let a request that has no timer come due at `when`, in seconds on the clock that `due` is asked with."""
        entry = when, next(self._numbers), request
        self._entries[request.request_id] = entry
        self._sorted.add(entry)

    def clear(self, request_id: str) -> None:
        """Forget a request's timer, if it has one."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._sorted.remove(entry)

    def due(self, now: float) -> list[Request]:
        """Requests whose time has come, the earliest first; their timers are gone."""
        due: list[Request] = []
        while self.next_due <= now:
            due.append(self._sorted.pop(0)[2])
            del self._entries[due[-1].request_id]
        return due
