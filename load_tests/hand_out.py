"""Hands out the requests of a workload to the users of a closed loop."""

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from load_tests.traffic import Arrival

PAUSE_AFTER_FAILURE = 1.0
"""Seconds until a user whose request failed sends another one. Without the pause, users whose requests are refused
would send most of all requests."""

R = TypeVar("R", bound=Arrival)


class HandOut(Generic[R]):
    """Requests that users share.

    The user who gets the first turn of a chat gets all of its turns, because nobody sends a turn before the answer to
    the one before.
    """

    def __init__(self, requests: Iterator[R]) -> None:
        self._requests = requests
        self._queues: defaultdict[int, deque[R]] = defaultdict(deque)
        self._owners: dict[tuple[str, int], int] = {}

    def next_for(self, user: int) -> R | None:
        """The next request of a user. None if there are no more."""
        while not self._queues[user]:
            if (request := next(self._requests, None)) is None:
                return None
            owner = user if request.chat is None else self._owners.setdefault(request.chat, user)
            self._queues[owner].append(request)
        return self._queues[user].popleft()
