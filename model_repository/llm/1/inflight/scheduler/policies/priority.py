"""Priority levels, with ageing."""

from inflight.request import Request
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy


class Priority(SchedulingPolicy):
    """A level is a head start: a request of level 1 goes before those of level 2 that arrived less than
    `ageing_seconds` before it. So everybody's turn comes, and no key has to change as time goes by.

    Where a waiting request finds no room, running ones of lower levels that rank lower make some.
    """

    merges_levels = True
    preempts = True

    def __init__(self, ageing_seconds: float) -> None:
        self._ageing_seconds = ageing_seconds

    def order(self) -> Order:
        return KeyedOrder(self.rank)

    def rank(self, request: Request) -> float:
        return request.arrival + self._ageing_seconds * request.priority
