"""Requests that wait for admission, in the order in which they will get it."""

import itertools
from collections import Counter
from collections.abc import Iterator

from inflight.request import Request
from inflight.scheduler.queue_policy import DELAY, QueuePolicies
from inflight.scheduler.request_heap import RequestHeap
from inflight.scheduler.timers import Timers


class WaitingQueue:
    """By priority level, then first come, first served; every operation takes O(log n).

    The order within a level: preempted requests, the others, and last those that waited longer than their timeout
    where the level's `timeout_action` is DELAY. Priority is strict, as in Triton: as long as requests of a higher
    level come in, those of a lower one wait.
    """

    def __init__(self, policies: QueuePolicies) -> None:
        self._policies = policies
        self._order = RequestHeap()
        self._timers = Timers()
        self._at_level: Counter[int] = Counter()
        self._tail = itertools.count()
        self._head = itertools.count(-1, -1)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._order

    def __iter__(self) -> Iterator[Request]:
        """All requests in order; sorts them, so it is no part of a step."""
        return iter(self._order)

    def count(self, level: int) -> int:
        """How many requests of a priority level wait."""
        return self._at_level[level]

    def add(self, request: Request) -> None:
        """Queue a newcomer behind all others of its level that were not delayed."""
        self._put(request, delayed=False, number=next(self._tail))
        if request.wait_until is not None:
            self._timers.set(request, request.wait_until)

    def put_back(self, request: Request) -> None:
        """Queue a request that had run at the head of its level; it has waited and times out no more."""
        self._put(request, delayed=False, number=next(self._head))

    def _put(self, request: Request, *, delayed: bool, number: int) -> None:
        self._order.add(request, (request.priority, delayed, number))
        self._at_level[request.priority] += 1

    def first(self) -> Request | None:
        """The request whose turn it is, which stays; None if nothing waits."""
        first = self._order.first()
        return None if first is None else first[1]

    def remove(self, request_id: str) -> Request | None:
        """Take a request out; None if it is not here."""
        request = self._order.remove(request_id)
        if request is not None:
            self._timers.clear(request_id)
            self._at_level[request.priority] -= 1
        return request

    def time_out(self, now: float) -> list[Request]:
        """Apply `timeout_action` to those whose `wait_until` has come: delay them, or take them out and return them."""
        rejected = []
        for request in self._timers.due(now):
            self.remove(request.request_id)
            if self._policies.of(request.priority).timeout_action == DELAY:
                self._put(request, delayed=True, number=next(self._tail))
            else:
                rejected.append(request)
        return rejected
