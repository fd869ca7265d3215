"""What a queue policy is."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from sortedcontainers import SortedList

from inflight.request import Request


class Order(ABC):
    """Requests that wait, of one priority level, and which of them is next. Operations take O(log n)."""

    @abstractmethod
    def add(self, request: Request, *, newcomer: bool = False) -> None:
        """Take in a request: a newcomer, or one that had left for a while."""

    @abstractmethod
    def remove(self, request_id: str) -> None:
        """Take out a request that is here."""

    @abstractmethod
    def first(self) -> Request | None:
        """Who is next; None if nobody is here."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """All requests in order as things stand."""

    def expire(self, now: float) -> list[tuple[Request, str]]:
        """Requests that the policy gives up, each with the reason; they stay here until they are removed."""
        return []

    @property
    def next_due(self) -> float:
        """When `expire` may give up a request next; infinity if never."""
        return math.inf


class KeyedOrder(Order):
    """The smallest key first, and of equal ones the earliest. A key is fixed as long as its request waits."""

    def __init__(self, key: Callable[[Request], float]) -> None:
        self._key = key
        self._sorted: SortedList[tuple[float, int, Request]] = SortedList()
        self._entries: dict[str, tuple[float, int, Request]] = {}

    def add(self, request: Request, *, newcomer: bool = False) -> None:
        entry = self._key(request), request.number, request
        self._entries[request.request_id] = entry
        self._sorted.add(entry)

    def remove(self, request_id: str) -> None:
        self._sorted.remove(self._entries.pop(request_id))

    def first(self) -> Request | None:
        return self._sorted[0][2] if self._sorted else None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in self._sorted)


class SchedulingPolicy(ABC):
    """Orders the queue, ranks the running set for preemption, and hears what becomes of requests."""

    merges_levels = False
    """Whether the policy itself weighs priority levels; otherwise a higher level always goes first."""

    preempts = False
    """Whether a waiting request may take the place of running ones that rank lower and have a lower level."""

    @abstractmethod
    def order(self) -> Order:
        """An empty queue."""

    def rank(self, request: Request) -> float:
        """The running request with the largest rank goes first when blocks run out; of equals the last admitted."""
        return request.priority

    def admitted(self, request: Request) -> None:
        """A request has joined the running set; `num_computed` counts what of it the cache held."""

    def generated(self, counts: Iterable[tuple[Request, int]]) -> None:
        """A step gave each request so many tokens."""
