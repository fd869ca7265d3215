"""First come, first served."""

from inflight.request import Request
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy


class Fcfs(SchedulingPolicy):
    """Admits requests in order of arrival. A preempted request gets its old position back."""

    def order(self) -> Order:
        return KeyedOrder(arrival_number)


def arrival_number(request: Request) -> float:
    """Sort key for the order of arrival."""
    return request.number
