"""Work of several tenants, who take turns: who sends much waits for itself alone."""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from inflight.errors import QueueFull

_T = TypeVar("_T")


class TenantTurns(Generic[_T]):
    """Queues of work, one for each tenant. The caller holds a lock."""

    def __init__(self, what: str, *, most: int, most_in_all: int) -> None:
        """`what` waits, in messages. At most `most` of a tenant and `most_in_all` of all wait."""
        self._what, self._most, self._most_in_all = what, most, most_in_all
        self._queues: OrderedDict[str, deque[_T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_T]:
        """All work, tenant by tenant."""
        return itertools.chain.from_iterable(self._queues.values())

    def tenants(self) -> list[str]:
        """Return those with work, the next one first."""
        return list(self._queues)

    def add(self, tenant: str, work: _T) -> None:
        """Add a tenant's work behind its own.

        Raises:
            QueueFull: too much waits, of this tenant or of all.
        """
        mine = len(self._queues.get(tenant, ()))
        for waiting, most in ((mine, self._most), (self._count, self._most_in_all)):
            if waiting >= most:
                raise QueueFull(f"Exceeds maximum queue size: {waiting} {self._what}")
        self._queues.setdefault(tenant, deque()).append(work)
        self._count += 1

    def take(self, tenant: str) -> _T:
        """Remove a tenant's first work. Its next turn is after those of all others."""
        queue = self._queues.pop(tenant)
        work = queue.popleft()
        self._count -= 1
        if queue:
            self._queues[tenant] = queue
        return work

    def first(self) -> _T:
        """Return the work whose turn is next. There must be some."""
        return next(iter(self._queues.values()))[0]

    def take_if(self, condition: Callable[[_T], bool]) -> list[_T]:
        """Remove the work for which a condition is true, without anybody's turn being used up."""
        taken: list[_T] = []
        for tenant, queue in list(self._queues.items()):
            kept = deque[_T]()
            for work in queue:
                (taken if condition(work) else kept).append(work)
            if kept:
                self._queues[tenant] = kept
            else:
                del self._queues[tenant]
        self._count -= len(taken)
        return taken
