"""Priority levels with ageing."""

from inflight.request import Request
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy


class Priority(SchedulingPolicy):
    """Gives each level a head start: a request of level 1 goes before a request of level 2 unless that request arrived
    at least `ageing_seconds` earlier. So every request is admitted in the end, and no key changes with time.

    If there is no room for a waiting request, running requests of lower levels that rank after it are preempted.
    """

    merges_levels = True
    preempts = True

    def __init__(self, ageing_seconds: float) -> None:
        self._ageing_seconds = ageing_seconds

    def order(self) -> Order:
        return KeyedOrder(self._key)

    def rank(self, request: Request) -> tuple[float, ...]:
        return (self._key(request),)

    def _key(self, request: Request) -> float:
        return request.arrival + self._ageing_seconds * request.priority
