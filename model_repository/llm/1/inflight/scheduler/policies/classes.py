"""Classes of requests in one engine: each has its own order, some have shares, and some get what the others leave."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest
from inflight.scheduler.policies.fair import OUTPUT_PRICE, PROMPT_PRICE
from inflight.scheduler.policies.policy import LeftoverPolicy, Order, SchedulingPolicy
from inflight.scheduler.prefill_budget import PrefillAllowance
from inflight.scheduler.request_class import RequestClass
from inflight.scheduler.step_time import StepTimeModel

STRETCH = 1.08
"""Without a target, how many times as long as its decodes a step with leftover work may take. Longer steps mean more
requests at once, which lengthen the steps in turn; so this keeps end-to-end times within 1.1 times."""
PART_OF_TTFT = 0.1
"""The part of the target time to first token that a step of leftover work alone may take. A request that arrives
meanwhile waits for it."""
ALONE = 16
"""Leftover tokens that a step without other work has whatever the targets, so that there is progress."""
CHUNK = 64
"""Maximum number of tokens in a step that a leftover class gets for its minimum share. Fewer take hardly less time."""
CREDIT = 512.0
"""How far, in token prices, a leftover class can be behind or ahead of its minimum share. The rest is forgotten."""


class Classes(SchedulingPolicy, LeftoverPolicy):
    """Admits next the class with the least service relative to its share. A leftover class comes after all others.

    Service is priced as in the Virtual Token Counter ('Fairness in Serving Large Language Models', OSDI'24), with
    classes in the place of tenants. If two classes, neither of them leftover, always have requests waiting, their
    services divided by their shares differ by at most `2 * max(PROMPT_PRICE * longest prompt, OUTPUT_PRICE * tokens
    that the cache holds)`, divided by the smaller share (theorem 4.4; without preemption).

    Leftover requests do not lengthen the steps of others beyond their targets: by the step-time model, a step takes at
    most the longer of what it would take without them and the strictest `target_itl_ms` of the other classes in it. So
    prompts of others pass first. Where there are no others, it takes at most `PART_OF_TTFT` of the strictest
    `target_ttft_ms`. Only `ALONE` tokens a step, if there is nothing else, and `CHUNK` tokens for a class that is
    behind its minimum share may go beyond. Such a class is also the next to be admitted. So as far as its part of the
    tokens is at most `CHUNK` a step and others end their requests, it gets its part of all service, less `2 * CREDIT`.
    An image that cannot be cut may go beyond too. If it waited until it fits, it might hold up all leftover work.

    A leftover request gives its slot and its blocks to a waiting request of another class. The oldest one of a class
    with a minimum share keeps them, so that it gets to its end.
    """

    merges_levels = True

    def __init__(
        self,
        classes: Sequence[RequestClass],
        orders: Mapping[str, SchedulingPolicy],
        times: StepTimeModel,
        target_ttft: float,
    ) -> None:
        """`orders` has the policy within each class. `target_ttft`, in seconds, is for classes without one."""
        self._first = classes[0]
        self.orders = orders
        self.leftover = self if any(each.leftover for each in classes) else None
        self.ranks_by_prefix = any(order.ranks_by_prefix for order in orders.values())
        self.service = dict.fromkeys(orders, 0.0)
        """What each class got or was lifted to, divided by its share."""
        self.credit = {each.name: 0.0 for each in classes if each.min_share}
        """By how much each leftover class with a minimum share is behind it, in token prices."""
        self._times = times
        targets = [each.target_ttft_ms for each in classes if not each.leftover]
        self._alone = PART_OF_TTFT * min(target_ttft if ms is None else ms / 1e3 for ms in targets)
        self._by_name = {each.name: each for each in classes}
        self._by_tenant = {tenant: each for each in classes for tenant in each.tenants}
        self._by_priority = {priority: each for each in classes for priority in each.priorities}
        self._last_left = {each.leftover: each.name for each in classes}

    def classify(self, request: Request) -> None:
        """Give the request the class that it names, or else its tenant's, or its priority's, or the first one."""
        options = request.options
        found = self._by_name.get(options.request_class) or self._by_tenant.get(options.tenant)
        found = found or self._by_priority.get(request.priority or options.priority, self._first)
        request.class_name, request.is_leftover = found.name, found.leftover

    def order(self) -> Order:
        return _ClassesOrder(self)

    def place(self, name: str) -> tuple[int, float]:
        """Return the sort key of a waiting class: those behind their minimum share first, leftover ones last."""
        behind = self.credit.get(name, 0.0) > 0
        return -1 if behind else int(self._by_name[name].leftover), self.service[name]

    # -- leftover work -----------------------------------------------------------------------------------------------

    def rank(self, request: Request) -> tuple[float, ...]:
        return (float(request.is_leftover),)

    def outranks(self, request: Request, other: Request) -> bool:
        return other.is_leftover and not request.is_leftover

    def victims(self, request: Request, running: Sequence[Request]) -> list[Request]:
        kept: dict[str, Request] = {}
        lower = [other for other in running if self.outranks(request, other)]
        for other in lower:
            if other.class_name in self.credit:
                kept.setdefault(other.class_name, other.leader)
        return [other for other in lower if other.leader not in kept.values()]

    def reserved(self, leftover: Iterable[Request]) -> int:
        return self._behind({request.class_name for request in leftover})

    def _behind(self, names: Iterable[str]) -> int:
        """Return how many tokens of a step these classes may have for their minimum shares."""
        return min(CHUNK, math.ceil(max([0.0, *(self.credit.get(name, 0.0) for name in names)])))

    def turn(self, request: Request) -> tuple[bool, float]:
        return self.credit.get(request.class_name, 0.0) <= 0, request.last_token_at or 0.0

    def allowance(self, scheduled: Sequence[ScheduledRequest], tokens: int) -> PrefillAllowance:
        seconds = self._seconds(scheduled)
        decodes = [each for each in scheduled if each.request.decodes]
        decoding = self._seconds(decodes) if decodes else 0.0  # By the model, a step without tokens takes time, too.
        targets = {self._by_name[each.request.class_name].target_itl_ms for each in scheduled}
        longest = min((STRETCH * decoding if ms is None else ms / 1e3 for ms in targets), default=self._alone)
        least = max(self._behind(self.credit), 0 if scheduled else ALONE)
        return PrefillAllowance(tokens, seconds=max(0.0, longest - seconds), times=self._times, least=least)

    def _seconds(self, scheduled: Sequence[ScheduledRequest]) -> float:
        return self._times.step_seconds(
            sum([each.num_tokens for each in scheduled]),
            sum([each.first for each in scheduled]),
            sum([each.num_pairs for each in scheduled]),
        )

    # -- service -----------------------------------------------------------------------------------------------------

    def admitted(self, request: Request) -> None:
        if request.num_preemptions == 0:
            self._charge(request.class_name, PROMPT_PRICE * (len(request.prompt_ids) - request.num_computed))
        self.orders[request.class_name].admitted(request)

    def computed(self, counts: Iterable[tuple[Request, int]]) -> None:
        if not self.credit:
            return
        prices: defaultdict[str, float] = defaultdict(float)
        for request, num_tokens in counts:
            prices[request.class_name] += OUTPUT_PRICE if num_tokens == 1 else PROMPT_PRICE * num_tokens
        everything = sum(prices.values())
        for name, credit in self.credit.items():
            credit += self._by_name[name].min_share * everything - prices[name]
            self.credit[name] = min(CREDIT, max(-CREDIT, credit))

    def generated(self, counts: Iterable[tuple[Request, int]]) -> None:
        by_class: defaultdict[str, list[tuple[Request, int]]] = defaultdict(list)
        for request, num_tokens in counts:
            by_class[request.class_name].append((request, num_tokens))
        for name, own in by_class.items():
            self._charge(name, OUTPUT_PRICE * sum([num_tokens for _, num_tokens in own]))
            self.orders[name].generated(own)

    def foreseen(self, request: Request) -> None:
        self.orders[request.class_name].foreseen(request)

    def finished(self, request: Request) -> None:
        self.orders[request.class_name].finished(request)

    def _charge(self, name: str, price: float) -> None:
        self.service[name] += price / self._by_name[name].share

    def comes(self, name: str, waiting: Iterable[str]) -> None:
        """Called when a class begins to wait beside the `waiting` ones: it gains nothing from its time without
        requests."""
        leftover = self._by_name[name].leftover
        peers = [self.service[peer] for peer in waiting if self._by_name[peer].leftover == leftover]
        least = min(peers, default=self.service[self._last_left[leftover]])
        self.service[name] = max(self.service[name], least)

    def leaves(self, name: str) -> None:
        """Called when a class has no more waiting requests."""
        self._last_left[self._by_name[name].leftover] = name


class _ClassesOrder(Order):
    """An order for each class. There are few of them, so they are compared each time."""

    def __init__(self, policy: Classes) -> None:
        self._policy = policy
        self._orders = {name: order.order() for name, order in policy.orders.items()}
        self._class_of: dict[str, str] = {}

    def add(self, request: Request, *, newcomer: bool = False) -> None:
        name = request.class_name
        if newcomer and not self._orders[name]:
            self._policy.comes(name, self._waiting())
        self._orders[name].add(request, newcomer=newcomer)
        self._class_of[request.request_id] = name

    def remove(self, request_id: str) -> None:
        name = self._class_of.pop(request_id)
        self._orders[name].remove(request_id)
        if not self._orders[name]:
            self._policy.leaves(name)

    def _waiting(self) -> list[str]:
        return sorted([name for name, order in self._orders.items() if order], key=self._policy.place)

    def first(self) -> Request | None:
        waiting = self._waiting()
        return self._orders[waiting[0]].first() if waiting else None

    def __len__(self) -> int:
        return len(self._class_of)

    def __iter__(self) -> Iterator[Request]:
        for name in self._waiting():
            yield from self._orders[name]

    def expire(self, now: float) -> list[tuple[Request, str]]:
        return [given_up for order in self._orders.values() for given_up in order.expire(now)]

    @property
    def next_due(self) -> float:
        return min(order.next_due for order in self._orders.values())
