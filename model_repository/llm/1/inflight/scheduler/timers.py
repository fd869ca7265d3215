"""When something is due for a request."""

import itertools

from inflight.request import Request
from inflight.scheduler.request_heap import RequestHeap


class Timers:
    """One point in time for each of some requests. Costs follow what comes due, not what is pending."""

    def __init__(self) -> None:
        self._heap = RequestHeap()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, request: Request, when: float) -> None:
        """Let a request that has no timer come due at `when`, in seconds on the clock that `due` is asked with."""
        self._heap.add(request, (when, next(self._numbers)))

    def clear(self, request_id: str) -> None:
        """Forget a request's timer, if it has one."""
        self._heap.remove(request_id)

    def due(self, now: float) -> list[Request]:
        """Requests whose time has come, the earliest first; their timers are gone."""
        due = []
        while (first := self._heap.first()) is not None and first[0][0] <= now:
            due.append(first[1])
            self._heap.remove(first[1].request_id)
        return due
