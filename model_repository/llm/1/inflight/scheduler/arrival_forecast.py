"""Foresees how many prompt tokens of each priority level will arrive."""

import math
from dataclasses import dataclass

from inflight.request import Request

_SPAN = 5.0
"""How many horizons old an arrival is when its weight has fallen to 1/e."""


@dataclass(slots=True)
class _Rate:
    """An exponentially weighted rate."""

    per_second: float = 0.0
    at: float = 0.0

    def decayed(self, now: float, span: float) -> float:
        return self.per_second * math.exp(-max(0.0, now - self.at) / span)

    def add(self, amount: float, now: float, span: float) -> None:
        self.per_second = self.decayed(now, span) + amount / span
        self.at = max(self.at, now)


class ArrivalForecast:
    """Expects that requests go on to arrive as they did lately: an exponentially weighted rate for each priority level.

    A burst raises the rate with its first requests, and in simulations a faster rate for bursts alone gained nothing.
    """

    def __init__(self, horizon: float, ageing_seconds: float = math.inf) -> None:
        """
        Args:
            horizon: how many seconds ahead it looks, over 0.
            ageing_seconds: the wait that raises a request by one level.
        """
        self._horizon = horizon
        self._span = _SPAN * horizon
        self._ageing_seconds = ageing_seconds
        self._rates: dict[int, _Rate] = {}
        """By level, of which there are few. In prompt tokens."""

    def arrived(self, request: Request) -> None:
        """Learn of a new request."""
        rate = self._rates.setdefault(request.priority, _Rate())
        rate.add(len(request.prompt_ids), request.arrival, self._span)

    def tokens_before(self, request: Request, now: float) -> float:
        """Return how many prompt tokens are expected within the horizon that would go before a waiting request."""
        waited = max(0.0, now - request.arrival)
        rates = [
            rate.decayed(now, self._span)
            for level, rate in self._rates.items()
            if level < request.priority and waited < (request.priority - level) * self._ageing_seconds
        ]
        return self._horizon * sum(rates)
