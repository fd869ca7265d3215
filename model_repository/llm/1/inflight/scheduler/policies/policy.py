"""The interface of scheduling policies."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sortedcontainers import SortedList

from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest
from inflight.scheduler.prefill_budget import PrefillAllowance


class Order(ABC):
    """The waiting requests of one priority level, in the order of a policy. Operations take O(log n)."""

    @abstractmethod
    def add(self, request: Request, *, newcomer: bool = False) -> None:
        """Add a request. `newcomer` is false if the request has waited here before."""

    @abstractmethod
    def remove(self, request_id: str) -> None:
        """Remove a request of this order."""

    @abstractmethod
    def first(self) -> Request | None:
        """Return the next request; None if there is none."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """All requests in their current order."""

    def expire(self, now: float) -> list[tuple[Request, str]]:
        """Return the requests that the policy gives up, each with the reason. They stay here until `remove`."""
        return []

    @property
    def next_due(self) -> float:
        """When `expire` may next give up a request; infinity if never."""
        return math.inf


class KeyedOrder(Order):
    """Smallest key first; equal keys in order of arrival. A key must not change while its request waits."""

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

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in self._sorted)


class LeftoverPolicy(ABC):
    """Decides what leftover requests get of a step."""

    @abstractmethod
    def turn(self, request: Request) -> tuple[bool, float]:
        """Return the sort key of a running leftover request: whose turn it is to be computed."""

    @abstractmethod
    def reserved(self, leftover: Iterable[Request]) -> int:
        """Return how many tokens of a step these leftover requests have whatever the others need."""

    @abstractmethod
    def allowance(self, scheduled: Sequence[ScheduledRequest], tokens: int) -> PrefillAllowance:
        """Return what leftover requests, decodes and prompts, may take of a step beside the `scheduled` ones.

        The step may have `tokens` more tokens.
        """


class SchedulingPolicy(ABC):
    """Orders the waiting queue and ranks the running set for preemption. It learns of admissions and new tokens."""

    merges_levels = False
    """Whether the policy itself weighs priority levels. Otherwise a higher level always goes first."""

    preempts = False
    """Whether running requests may be preempted for a waiting one of a higher level that ranks before them."""

    ranks_running = False
    """Whether `rank` tells running requests of one level apart."""

    ranks_by_prefix = False
    """Whether the order of new requests depends on how much of their prompts the prefix cache holds."""

    leftover: LeftoverPolicy | None = None
    """What leftover requests get, if there are any: those with `is_leftover`, for what the others leave."""

    def classify(self, request: Request) -> None:
        """Called when a request arrives, to set its `class_name` and `is_leftover`."""

    def outranks(self, request: Request, other: Request) -> bool:
        """Return whether a waiting request may take the room of another one that runs."""
        return request.priority < other.priority and self.rank(request) < self.rank(other)

    def victims(self, request: Request, running: Sequence[Request]) -> list[Request]:
        """Return the `running` requests that may be preempted for a waiting one, in the same order."""
        return [other for other in running if self.outranks(request, other)]

    @abstractmethod
    def order(self) -> Order:
        """Return an empty order."""

    def rank(self, request: Request) -> tuple[float, ...]:
        """Return the rank of a request.

        When blocks run out, the running request with the largest rank is preempted first; if ranks are equal, the one
        admitted last.
        """
        return (request.priority,)

    def admitted(self, request: Request) -> None:
        """Called when a request has joined the running set. Its `num_computed` counts the tokens found in the cache."""

    def shares(self, running: Iterable[Request]) -> Mapping[str, float]:
        """Return the tenants that are limited in this step, each with its part of the decodes.

        Its prompts may take this part of their time, and of its decodes this part takes place.
        """
        return {}

    def computed(self, counts: Iterable[tuple[Request, int]]) -> None:
        """Called after a step with the number of tokens that were computed of each request, before `generated`."""

    def generated(self, counts: Iterable[tuple[Request, int]]) -> None:
        """Called after a step with the number of new tokens of each request."""

    def foreseen(self, request: Request) -> None:
        """Called when more is known of the output length of a running request."""

    def finished(self, request: Request) -> None:
        """Called when the output of a request is complete."""
