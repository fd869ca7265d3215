"""Fair sharing among tenants: the Virtual Token Counter of 'Fairness in Serving Large Language Models' (OSDI'24)."""

import heapq
from collections.abc import Iterable, Iterator, Mapping

from inflight.request import Request
from inflight.scheduler.policies.fcfs import arrival_number
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy

PROMPT_PRICE = 1.0
OUTPUT_PRICE = 2.0
"""Price of a token, as in the paper. Prompt tokens found in the prefix cache are free."""

_MANY_TENANTS = 10_000


class Fair(SchedulingPolicy):
    """Admits next the tenant with the least service relative to its weight. Within a tenant: first come, first served.

    If two tenants always have requests waiting, their services, divided by their weights, differ by at most
    `2 * max(PROMPT_PRICE * longest prompt, OUTPUT_PRICE * tokens that the cache holds)` (theorem 4.4 of the paper;
    without preemption).
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self.service: dict[str, float] = {}
        """The counter of each tenant: the service that it got or was lifted to, divided by its weight."""
        self._last_left = ""

    def order(self) -> Order:
        return _FairOrder(self)

    def admitted(self, request: Request) -> None:
        if request.num_preemptions == 0:
            self._charge(request, PROMPT_PRICE * (len(request.prompt_ids) - request.num_computed))

    def generated(self, counts: Iterable[tuple[Request, int]]) -> None:
        for request, num_tokens in counts:
            self._charge(request, OUTPUT_PRICE * num_tokens)

    def _charge(self, request: Request, price: float) -> None:
        tenant = request.tenant
        self.service[tenant] = self.service.get(tenant, 0.0) + price / self._weights.get(tenant, 1.0)

    def lift(self, tenant: str, waiting: str | None) -> None:
        """Raise the counter of a tenant that comes back, so that it gains nothing from the time without requests.

        `waiting` is the least served tenant that waits. None means that no tenant waits; then the last one that waited
        counts instead.
        """
        floor = self.service.get(self._last_left if waiting is None else waiting, 0.0)
        self.service[tenant] = max(self.service.get(tenant, 0.0), floor)

    def left(self, tenant: str, others: Mapping[str, object]) -> None:
        """Called when a tenant has no more waiting requests. `others` are the tenants that have."""
        self._last_left = tenant
        if len(self.service) > _MANY_TENANTS + len(others):
            # Forget the least served tenants. They lose nothing, because they are lifted when they come back.
            absent = sorted((t for t in self.service if t not in others and t != tenant), key=self.service.__getitem__)
            for forgotten in absent[: len(absent) // 2]:
                del self.service[forgotten]


class _FairOrder(Order):
    """A queue for each waiting tenant, and a heap of tenants. A tenant's counter is updated at the top of the heap."""

    def __init__(self, policy: Fair) -> None:
        self._policy = policy
        self._queues: dict[str, KeyedOrder] = {}
        self._tenant_of: dict[str, str] = {}
        self._heap: list[tuple[float, str]] = []
        """(counter, tenant), each waiting tenant once. Counters may be old, and tenants that left may still be here."""
        self._in_heap: set[str] = set()

    def add(self, request: Request, *, newcomer: bool = False) -> None:
        tenant = request.tenant
        if tenant not in self._queues:
            if newcomer:
                self._policy.lift(tenant, self._min_served())
            self._queues[tenant] = KeyedOrder(arrival_number)
            if tenant not in self._in_heap:
                self._in_heap.add(tenant)
                heapq.heappush(self._heap, (self._policy.service.get(tenant, 0.0), tenant))
        self._queues[tenant].add(request)
        self._tenant_of[request.request_id] = tenant

    def remove(self, request_id: str) -> None:
        tenant = self._tenant_of.pop(request_id)
        queue = self._queues[tenant]
        queue.remove(request_id)
        if not queue:
            del self._queues[tenant]
            self._policy.left(tenant, self._queues)

    def first(self) -> Request | None:
        tenant = self._min_served()
        return None if tenant is None else self._queues[tenant].first()

    def _min_served(self) -> str | None:
        """Return the waiting tenant with the smallest counter. Counters only grow, so an old one is never too large."""
        while self._heap:
            counter, tenant = self._heap[0]
            if tenant not in self._queues:
                heapq.heappop(self._heap)
                self._in_heap.discard(tenant)
            elif (now := self._policy.service.get(tenant, 0.0)) != counter:
                heapq.heapreplace(self._heap, (now, tenant))
            else:
                return tenant
        return None

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __iter__(self) -> Iterator[Request]:
        for tenant in sorted(self._queues, key=lambda t: (self._policy.service.get(t, 0.0), t)):
            yield from self._queues[tenant]
