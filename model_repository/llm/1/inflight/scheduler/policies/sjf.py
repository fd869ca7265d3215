"""Shortest job first."""

from collections.abc import Callable

from inflight.request import Request
from inflight.scheduler.length_predictor import LengthPredictor
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy


class ShortestJobFirst(SchedulingPolicy):
    """Least expected remaining work first: uncached prompt tokens plus the output tokens still predicted.

    One second of waiting offsets `ageing` tokens. All waiting requests age at the same rate, so a key that includes the
    arrival time never changes. Only finitely many requests can overtake a waiting one.
    """

    ranks_by_prefix = True

    def __init__(self, ageing: float, lengths: LengthPredictor, uncached: Callable[[Request], int]) -> None:
        """`uncached` returns how many known tokens of a request are not in the prefix cache."""
        self._ageing = ageing
        self._lengths = lengths
        self._uncached = uncached

    def order(self) -> Order:
        return KeyedOrder(self._key)

    def _key(self, request: Request) -> float:
        work = self._uncached(request) + self._lengths.remaining(request)
        return work + self._ageing * request.arrival
