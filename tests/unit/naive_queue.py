"""The order in which requests wait, as each policy defines it, written with a list that is sorted every time."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from inflight.request import Request
from inflight.scheduler.scheduler import Scheduler

PROMPT_PRICE, OUTPUT_PRICE = 1, 2
GRACE = 10


@dataclass
class Entry:
    request: Request
    delayed: bool
    key: float
    latest_start: float = 0.0
    """Of 'slo': when the request must start to meet its target."""
    lost: bool = False
    """Of 'slo': it can't meet its target any more."""


class NaiveQueue:
    """Hears who enters and leaves the queue, and what tenants are served; says who should be where."""

    def __init__(self, scheduler: Scheduler, policy: str = "", target_ttft_ms: float = 0.0) -> None:
        """`policy` and `target_ttft_ms` are those of a class of requests, which knows no levels."""
        self._scheduler = scheduler
        self._config = scheduler.config
        self._policy = policy or self._config.scheduling_policy
        self._target_ttft_ms = target_ttft_ms or self._config.target_ttft_ms
        self._has_levels = not policy and self._policy != "priority"
        self.entries: dict[str, Entry] = {}
        self.counters: dict[str, float] = {}
        """Of 'fair': what each tenant was given or lifted to."""
        self._virtual_time, self._total, self._known_total = 0.0, 0.0, 0.0
        self._since: dict[str, int] = {}
        """The request with which each waiting tenant began to wait."""
        self._last_left = ""
        self._joined: Request | None = None
        self._late: set[Request] = set()
        """Of 'sjf': requests whose latest start came while they waited."""

    def put(self, request: Request, *, delayed: bool, newcomer: bool) -> None:
        self._charge_prompt()
        if self._policy == "fair" and not delayed and request.tenant not in self._tenants():
            self._begins_to_wait(request, newcomer=newcomer)
        key = 0.0 if delayed else self._key(request)
        latest_start = self._latest_start(request) if self._policy == "slo" else 0.0
        self.entries[request.request_id] = Entry(request, delayed, key, latest_start)

    def take(self, request: Request, *, joins: bool = False) -> None:
        self._charge_prompt()
        entry = self.entries[request.request_id]
        if not entry.delayed and sum(request.tenant == tenant for tenant in self._tenants_of_all()) == 1:
            self._now()
            self._last_left = request.tenant
        del self.entries[request.request_id]
        if joins:
            self.joins(request)

    def joins(self, request: Request) -> None:
        """A request was admitted; what the cache held of its prompt is not known yet."""
        self._joined = request if request.num_preemptions == 0 else None

    def order(self) -> list[Request]:
        self._charge_prompt()
        return [entry.request for entry in sorted(self.entries.values(), key=self._place)]

    def expire(self, now: float) -> list[Request]:
        """Those that can't meet their target any more, where such requests are shed."""
        if self._policy == "sjf":
            waiting = [entry.request for entry in self.entries.values() if not entry.delayed]
            self._late |= {request for request in waiting if request.latest_start <= now}
        if self._policy != "slo":
            return []
        for entry in self.entries.values():
            if not entry.delayed and not entry.request.num_output and entry.key <= now:
                entry.key = entry.latest_start
        lost = [
            e for e in self.entries.values() if not e.delayed and not e.request.num_output and e.latest_start <= now
        ]
        if self._config.shed_lost_requests:
            return [entry.request for entry in lost]
        for entry in lost:
            entry.lost = True
        return []

    def generated(self, counts: list[tuple[Request, int]]) -> None:
        self._charge_prompt()
        for request, count in counts:
            self._charge(request, OUTPUT_PRICE * count)

    def computed(self, counts: list[tuple[Request, int]]) -> None:
        """Tokens that a step computed."""

    def _place(self, entry: Entry) -> tuple[float | str | bool, ...]:
        request, policy = entry.request, self._policy
        level = request.priority if self._has_levels else 0
        if entry.delayed:
            return level, True, request.number
        if policy == "fair":
            return level, False, self.counters.get(request.tenant, 0.0), self._since[request.tenant], request.number
        if request in self._late:
            return level, False, False, request.latest_start, request.number
        if policy == "sjf":
            return level, False, True, entry.key, request.number
        return level, False, entry.key + GRACE * self._target(request) * entry.lost, request.number

    def _key(self, request: Request) -> float:
        keys: dict[str, Callable[[], float]] = {
            "sjf": lambda: self._work(request) + self._config.sjf_ageing * request.arrival,
            "priority": lambda: request.arrival + request.priority * self._config.priority_ageing_seconds,
            "slo": lambda: min(self._latest_start(request), self._latest_start_to_end(request)),
        }
        return keys.get(self._policy, lambda: 0.0)()

    def _uncached(self, request: Request) -> int:
        tables = self._scheduler.tables
        known = len(tables.prefixes.lookup(request))
        names = request.block_hashes[: request.max_reused_tokens // tables.block_size]
        kept = tables.host._kept.keys() | tables.host._reading.keys()
        while known < len(names) and names[known] in kept:
            known += 1
        known = max(known * tables.block_size, request.num_swapped)
        if request.imported is not None and request.imported.first_block * tables.block_size <= known:
            known = max(known, min(request.imported.num_tokens, request.max_reused_tokens))
        return len(request.token_ids) - known

    def _work(self, request: Request) -> float:
        times, slots = self._scheduler.times, self._config.max_num_seqs
        per_prompt_token = times.chunk_seconds(0, 1)
        per_output_token = times.decode_seconds(slots, slots * len(request.token_ids)) / slots
        weight = per_output_token / per_prompt_token if per_prompt_token else 1.0
        return self._uncached(request) + weight * self._scheduler.lengths.remaining(request)

    def _target(self, request: Request) -> float:
        target_ms = request.options.target_ttft_ms
        return (self._target_ttft_ms if target_ms is None else target_ms) / 1000

    def _latest_start(self, request: Request) -> float:
        if request.num_output:
            return request.arrival
        return request.arrival + self._target(request) - self._scheduler.times.prefill_seconds(self._uncached(request))

    def _latest_start_to_end(self, request: Request) -> float:
        if request.deadline is None:
            return math.inf
        scheduler = self._scheduler
        per_token = scheduler.times.decode_seconds(1, len(request.token_ids))
        prompt = scheduler.times.prefill_seconds(self._uncached(request))
        return request.deadline - prompt - per_token * scheduler.lengths.remaining(request)

    # -- the counters of 'Fairness in Serving Large Language Models' (OSDI'24), algorithm 2, with virtual time ----

    def _tenants_of_all(self) -> list[str]:
        return [entry.request.tenant for entry in self.entries.values() if not entry.delayed]

    def _tenants(self) -> set[str]:
        return set(self._tenants_of_all())

    def _begins_to_wait(self, request: Request, *, newcomer: bool) -> None:
        tenant, now = request.tenant, self._now()
        self._since[tenant] = request.number
        if newcomer:
            start = now if self._tenants() else self.counters.get(self._last_left, 0.0)
            self.counters[tenant] = max(self.counters.get(tenant, 0.0), start)

    def _now(self) -> float:
        """The virtual time of weighted fair queueing, between the counters of the tenants that wait."""
        served, self._known_total = self._total - self._known_total, self._total
        if waiting := self._tenants():
            counters = [self.counters.get(tenant, 0.0) for tenant in waiting]
            weight = math.fsum(self._config.tenant_weights.get(tenant, 1.0) for tenant in waiting)
            self._virtual_time = min(max(self._virtual_time + served / weight, min(counters)), max(counters))
        return self._virtual_time

    def _charge_prompt(self) -> None:
        """What the cache held is known only after a request has joined."""
        request, self._joined = self._joined, None
        if request is not None:
            self._charge(request, PROMPT_PRICE * (len(request.prompt_ids) - request.num_cached))

    def _charge(self, request: Request, price: float) -> None:
        weight = self._config.tenant_weights.get(request.tenant, 1.0)
        self._total += price
        self.counters[request.tenant] = self.counters.get(request.tenant, 0.0) + price / weight
