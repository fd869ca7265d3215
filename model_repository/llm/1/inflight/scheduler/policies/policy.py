"""What a queue policy is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from inflight.request import Request
from inflight.scheduler.request_heap import RequestHeap


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
        """All requests in order as things stand; sorts them, so it is no part of a step."""

    def expire(self, now: float) -> list[tuple[Request, str]]:
        """Requests that the policy gives up, each with the reason; they stay here until they are removed."""
        return []


class KeyedOrder(Order):
    """The smallest key first, and of equal ones the earliest. A key is fixed as long as its request waits."""

    def __init__(self, key: Callable[[Request], float]) -> None:
        self._key = key
        self._heap = RequestHeap()

    def add(self, request: Request, *, newcomer: bool = False) -> None:
        self._heap.add(request, (self._key(request), request.number))

    def remove(self, request_id: str) -> None:
        self._heap.remove(request_id)

    def first(self) -> Request | None:
        first = self._heap.first()
        return None if first is None else first[1]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._heap)


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
