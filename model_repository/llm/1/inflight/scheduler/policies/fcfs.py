"""First come, first served."""

from inflight.request import Request
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy


class Fcfs(SchedulingPolicy):
    """By arrival; a preempted request gets its old place back."""

    def order(self) -> Order:
        return KeyedOrder(arrival_number)


def arrival_number(request: Request) -> float:
    """The key that puts requests in the order of their arrival."""
    return request.number
