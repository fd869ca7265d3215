"""When the requests of a simulation are sent: at planned times (open loop), or by users who wait for answers (closed
loop)."""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from load_tests.hand_out import PAUSE_AFTER_FAILURE, HandOut
from load_tests.traffic import Arrival

_TURNAROUND = 0.003
"""Seconds from the last token of an answer until the user's next request arrives, in a closed loop. The next step has
begun by then."""


class Loop(Protocol):
    """Sends requests in the order of their arrival. Their indices count from 0 in this order."""

    @property
    def next_at(self) -> float:
        """When the next request may arrive. Infinite if none will, unless another one ends before."""

    def due(self, now: float) -> list[Arrival]:
        """The requests that have arrived by now and that no earlier call returned."""

    def ended(self, index: int, now: float, *, answered: bool) -> None:
        """A request got its answer or was turned away."""


class OpenLoop:
    """Requests come at their times, however busy the engine is."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._arrivals = deque(arrivals)

    @property
    def next_at(self) -> float:
        """See `Loop`."""
        return self._arrivals[0].at if self._arrivals else math.inf

    def due(self, now: float) -> list[Arrival]:
        """See `Loop`."""
        found = []
        while self._arrivals and self._arrivals[0].at <= now:
            found.append(self._arrivals.popleft())
        return found

    def ended(self, index: int, now: float, *, answered: bool) -> None:
        """Do nothing."""


class ClosedLoop:
    """Users send one request after another, as those of `load_tests.generator.closed_loop` do. The times of the
    requests are ignored."""

    def __init__(self, requests: Sequence[Arrival], users: int) -> None:
        self._hand_out = HandOut(iter(requests))
        self._free = [(0.0, number) for number in range(users)]
        """When each user who waits for no answer sends the next request, as a heap."""
        self._users: list[int] = []
        """The user of each request that was sent."""

    @property
    def next_at(self) -> float:
        """See `Loop`."""
        return self._free[0][0] if self._free else math.inf

    def due(self, now: float) -> list[Arrival]:
        """See `Loop`. A user to whom no request is left leaves."""
        found = []
        while self._free and self._free[0][0] <= now:
            at, user = heapq.heappop(self._free)
            if (request := self._hand_out.next_for(user)) is not None:
                found.append(replace(request, at=at))
                self._users.append(user)
        return found

    def ended(self, index: int, now: float, *, answered: bool) -> None:
        """See `Loop`. Let the request's user send another one."""
        heapq.heappush(self._free, (now + (_TURNAROUND if answered else PAUSE_AFTER_FAILURE), self._users[index]))
