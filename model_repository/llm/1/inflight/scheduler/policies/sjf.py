"""Shortest job first."""

from collections.abc import Callable

from inflight.request import Request
from inflight.scheduler.length_predictor import LengthPredictor
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy


class ShortestJobFirst(SchedulingPolicy):
    """Least expected remaining work: tokens of the prompt that the cache lacks, and output tokens still predicted.

    A second of waiting makes up for `ageing` tokens. As all that wait age alike, a key that takes the arrival into
    account never has to change, and whoever waits is overtaken by finitely many.
    """

    def __init__(self, ageing: float, lengths: LengthPredictor, uncached: Callable[[Request], int]) -> None:
        """`uncached` says how many known tokens of a request the prefix cache lacks."""
        self._ageing = ageing
        self._lengths = lengths
        self._uncached = uncached

    def order(self) -> Order:
        return KeyedOrder(self._key)

    def _key(self, request: Request) -> float:
        work = self._uncached(request) + self._lengths.remaining(request)
        return work + self._ageing * request.arrival
