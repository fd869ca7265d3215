"""The order in which requests of several classes wait."""

from collections import Counter, defaultdict
from typing import Any

from inflight.request import Request
from inflight.scheduler.scheduler import Scheduler
from tests.unit.naive_queue import OUTPUT_PRICE, PROMPT_PRICE, Entry, NaiveQueue

CREDIT = 512.0


class NaiveClasses(NaiveQueue):
    """A queue for each class, and what each of them was served."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.classes: dict[str, dict[str, Any]] = dict(self._config.request_classes)
        self.inner = {
            name: NaiveQueue(scheduler, each.get("policy", "fcfs"), each.get("target_ttft_ms", 0.0))
            for name, each in self.classes.items()
        }
        self.service: defaultdict[str, float] = defaultdict(float)
        self.credit: defaultdict[str, float] = defaultdict(float)
        self._last_of_kind = {True: "", False: ""}

    def class_of(self, request: Request) -> str:
        options = request.options
        if options.request_class in self.classes:
            return options.request_class
        for field, value in (("tenants", options.tenant), ("priorities", request.priority or options.priority)):
            for name, each in self.classes.items():
                if value in each.get(field, ()):
                    return name
        return next(iter(self.classes))

    def is_leftover(self, request: Request) -> bool:
        return self._is_leftover(self.class_of(request))

    def _is_leftover(self, name: str) -> bool:
        return bool(self.classes[name].get("leftover", False))

    def put(self, request: Request, *, delayed: bool, newcomer: bool) -> None:
        self._charge_prompt()
        self.entries[request.request_id] = Entry(request, delayed, 0.0)
        if not delayed:
            name = self.class_of(request)
            if newcomer and not self.inner[name].entries:
                self._lift_class(name)
            self.inner[name].put(request, delayed=False, newcomer=newcomer)

    def _lift_class(self, name: str) -> None:
        kind = self._is_leftover(name)
        peers = [peer for peer, queue in self.inner.items() if queue.entries and self._is_leftover(peer) == kind]
        least = min(self.service[peer] for peer in peers or [self._last_of_kind[kind]])
        self.service[name] = max(self.service[name], least)

    def take(self, request: Request, *, joins: bool = False) -> None:
        self._charge_prompt()
        entry, name = self.entries.pop(request.request_id), self.class_of(request)
        if not entry.delayed:
            self.inner[name].take(request)
            if not self.inner[name].entries:
                self._last_of_kind[self._is_leftover(name)] = name
        if joins:
            self.joins(request)
            self.inner[name].joins(request)

    def order(self) -> list[Request]:
        self._charge_prompt()
        waiting = [name for name, queue in self.inner.items() if queue.entries]
        waiting.sort(key=self._place_of_class)
        delayed = [entry.request for entry in self.entries.values() if entry.delayed]
        delayed.sort(key=lambda request: request.number)
        return [request for name in waiting for request in self.inner[name].order()] + delayed

    def _place_of_class(self, name: str) -> tuple[int, float]:
        return -1 if self.credit[name] > 0 else int(self._is_leftover(name)), self.service[name]

    def expire(self, now: float) -> list[Request]:
        return [request for queue in self.inner.values() for request in queue.expire(now)]

    def generated(self, counts: list[tuple[Request, int]]) -> None:
        self._charge_prompt()
        for request, count in counts:
            self._charge(request, OUTPUT_PRICE * count)
            self.inner[self.class_of(request)].generated([(request, count)])

    def computed(self, counts: list[tuple[Request, int]]) -> None:
        prices: Counter[str] = Counter()
        for request, count in counts:
            prices[self.class_of(request)] += OUTPUT_PRICE if count == 1 else PROMPT_PRICE * count
        for name, each in self.classes.items():
            if part := each.get("min_share", 0.0):
                credit = self.credit[name] + (part * prices.total() - prices[name])  # Rounded as the policy's.
                self.credit[name] = min(CREDIT, max(-CREDIT, credit))

    def _charge(self, request: Request, price: float) -> None:
        name = self.class_of(request)
        self.service[name] += price / self.classes[name].get("share", 1.0)
