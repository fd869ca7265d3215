"""Fair sharing among tenants: the Virtual Token Counter of 'Fairness in Serving Large Language Models' (OSDI'24)."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TypeAlias

from sortedcontainers import SortedList

from inflight.request import Request
from inflight.scheduler.policies.fcfs import arrival_number
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy

PROMPT_PRICE = 1.0
OUTPUT_PRICE = 2.0
"""Price of a token, as in the paper. Prompt tokens found in the prefix cache are free."""

_WINDOW = 8192.0
"""How much service of all tenants counts as recent: older service has lost more than 63 % of its weight."""
_AHEAD = 1.5
"""A tenant is ahead if it got more than this many times its share of the recent service."""
_SHARES = 2.0
"""How many times its share a tenant that is ahead may have of the decodes, and its prompts of the decodes' time."""

_MANY_TENANTS = 10_000

_Place: TypeAlias = tuple[float, int, str]
"""The counter of a tenant, the number of the request with which it began to wait, and its name."""


class Fair(SchedulingPolicy):
    """Admits next the tenant with the least service relative to its weight. Within a tenant: first come, first served.

    If two tenants always have requests waiting, their services, divided by their weights, differ by at most
    `2 * max(PROMPT_PRICE * longest prompt, OUTPUT_PRICE * tokens that the cache holds)` (theorem 4.4 of the paper;
    without preemption).

    In the paper, a tenant that comes begins with the counter of the least served one that waits. Among endless new
    tenants, one that was served before would then wait for ever. Here it begins with the virtual time of weighted fair
    queueing (Demers et al., SIGCOMM'89), which also goes on while only new tenants are served. So new tenants pass a
    waiting one only until all together got as much service, for their weights, as it had got ahead of them.

    The paper shares the queue. Where nobody waits, a tenant with endless long prompts or many samples would still slow
    all steps. So a tenant that got much more than its share lately takes only a small part of each step.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self.service: dict[str, float] = {}
        """The counter of each tenant: the service that it got or was lifted to, divided by its weight."""
        self.total = 0.0
        """The service that all tenants got."""
        self._waiting: defaultdict[str, list[_FairOrder]] = defaultdict(list)
        """The orders in which each waiting tenant waits."""
        self._last_left = ""
        self._recent: dict[str, float] = {}
        """What each tenant got lately. All together it is at most `_WINDOW`."""

    def order(self) -> Order:
        return _FairOrder(self)

    def admitted(self, request: Request) -> None:
        if request.num_preemptions == 0:
            self._charge(request, PROMPT_PRICE * (len(request.prompt_ids) - request.num_computed))

    def computed(self, counts: Iterable[tuple[Request, int]]) -> None:
        recent: defaultdict[str, float] = defaultdict(float)
        for request, num_tokens in counts:
            recent[request.tenant] += OUTPUT_PRICE if num_tokens == 1 else PROMPT_PRICE * num_tokens
        faded = math.exp(-sum(recent.values()) / _WINDOW)
        for tenant, service in self._recent.items():
            recent[tenant] += service * faded
        self._recent = {tenant: service for tenant, service in recent.items() if service > 1.0}

    def shares(self, running: Iterable[Request]) -> Mapping[str, float]:
        waiting = self._waiting.keys()
        others = {request.tenant for request in running if request.tenant not in waiting}
        if len(waiting) + len(others) < 2:
            return {}
        everyone = self.weight_of_all(waiting) + self.weight_of_all(others)
        return {
            tenant: _SHARES * self.weight(tenant) / everyone
            for tenant, service in self._recent.items()
            if (tenant in waiting or tenant in others) and service > _AHEAD * self.weight(tenant) / everyone * _WINDOW
        }

    def generated(self, counts: Iterable[tuple[Request, int]]) -> None:
        for request, num_tokens in counts:
            self._charge(request, OUTPUT_PRICE * num_tokens)

    def _charge(self, request: Request, price: float) -> None:
        tenant = request.tenant
        self.total += price
        self._raise_to(tenant, self.service.get(tenant, 0.0) + price / self.weight(tenant))

    def _raise_to(self, tenant: str, counter: float) -> None:
        self.service[tenant] = counter
        for order in self._waiting.get(tenant, ()):
            order.grown.add(tenant)

    def weight(self, tenant: str) -> float:
        """Return the share of a tenant, relative to that of others."""
        return self._weights.get(tenant, 1.0)

    def weight_of_all(self, tenants: Set[str]) -> float:
        """Return the sum of the weights of tenants. What it takes depends on those that have weights of their own."""
        named = self._weights.keys() & tenants
        return len(tenants) - len(named) + math.fsum(map(self.weight, named))

    def comes(self, tenant: str, order: "_FairOrder", virtual_time: float | None, *, newcomer: bool) -> float:
        """Called when a tenant begins to wait in an order. Return its counter.

        The counter of a newcomer is raised to the order's virtual time, so that it gains nothing from the time without
        requests. None means that no tenant waits; then the counter of the last one that waited counts instead.
        """
        # The requests of a tenant that is no newcomer were preempted. It may have been forgotten meanwhile.
        if newcomer or tenant not in self.service:
            least = self.service.get(self._last_left, 0.0) if virtual_time is None else virtual_time
            self._raise_to(tenant, max(self.service.get(tenant, 0.0), least))
        self._waiting[tenant].append(order)
        return self.service[tenant]

    def leaves(self, tenant: str, order: "_FairOrder") -> None:
        """Called when a tenant has no more waiting requests in an order."""
        self._last_left = tenant
        self._waiting[tenant].remove(order)
        if not self._waiting[tenant]:
            del self._waiting[tenant]
        if len(self.service) > _MANY_TENANTS + len(self._waiting):
            # Forget the least served tenants. They lose nothing, because they are lifted when they come back.
            absent = sorted(self.service.keys() - self._waiting.keys() - {tenant}, key=self.service.__getitem__)
            for forgotten in absent[: len(absent) // 2]:
                del self.service[forgotten]


class _FairOrder(Order):
    """A queue for each waiting tenant, and a sorted list of these tenants.

    A counter that has grown since its tenant was sorted in is updated when the tenant comes first, or when the virtual
    time is asked for.
    """

    def __init__(self, policy: Fair) -> None:
        self._policy = policy
        self._queues: dict[str, KeyedOrder] = {}
        self._tenant_of: dict[str, str] = {}
        self._sorted: SortedList[_Place] = SortedList()
        self._places: dict[str, _Place] = {}
        """The place at which each waiting tenant was sorted in."""
        self.grown: set[str] = set()
        """Tenants whose counters have grown since the virtual time was asked for. Some may not wait any more."""
        self._virtual_time = 0.0
        self._total = 0.0
        """The service of all tenants up to which the virtual time is known."""

    def add(self, request: Request, *, newcomer: bool = False) -> None:
        tenant = request.tenant
        if tenant not in self._queues:
            counter = self._policy.comes(tenant, self, self._now(), newcomer=newcomer)
            self._sort_in(tenant, counter, request.number)
            self._queues[tenant] = KeyedOrder(arrival_number)
        self._queues[tenant].add(request)
        self._tenant_of[request.request_id] = tenant

    def remove(self, request_id: str) -> None:
        tenant = self._tenant_of.pop(request_id)
        queue = self._queues[tenant]
        queue.remove(request_id)
        if not queue:
            self._now()
            del self._queues[tenant]
            self._sorted.remove(self._places.pop(tenant))
            self._policy.leaves(tenant, self)

    def first(self) -> Request | None:
        tenant = self._min_served()
        return None if tenant is None else self._queues[tenant].first()

    def _min_served(self) -> str | None:
        """Return the waiting tenant with the smallest counter. Counters of waiting tenants only grow."""
        while self._sorted:
            first: _Place = self._sorted[0]
            counter, _, tenant = first
            if self._policy.service[tenant] == counter:
                return tenant
            self._sort_again(tenant)
        return None

    def _now(self) -> float | None:
        """Return the virtual time, which grows by the service of all tenants for the weight of those that wait.

        It is never before the least served tenant that waits, and never after the most served one. None if none waits.
        """
        served, self._total = self._policy.total - self._total, self._policy.total
        if not self._queues:
            return None
        for tenant in self.grown & self._queues.keys():
            self._sort_again(tenant)
        self.grown.clear()
        least, most = self._sorted[0][0], self._sorted[-1][0]
        time = self._virtual_time + served / self._policy.weight_of_all(self._queues.keys())
        self._virtual_time = min(max(time, least), most)
        return self._virtual_time

    def _sort_again(self, tenant: str) -> None:
        _, number, _ = place = self._places[tenant]
        self._sorted.remove(place)
        self._sort_in(tenant, self._policy.service[tenant], number)

    def _sort_in(self, tenant: str, counter: float, number: int) -> None:
        self._places[tenant] = place = (counter, number, tenant)
        self._sorted.add(place)

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __iter__(self) -> Iterator[Request]:
        for tenant in sorted(self._queues, key=lambda t: (self._policy.service[t], *self._places[t][1:])):
            yield from self._queues[tenant]
