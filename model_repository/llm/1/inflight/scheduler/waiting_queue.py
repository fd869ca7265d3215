"""The queue of requests that wait to be admitted."""

import itertools
from collections import Counter
from collections.abc import Iterator

from inflight.request import Request
from inflight.scheduler.policies.fcfs import Fcfs
from inflight.scheduler.policies.policy import Order, SchedulingPolicy
from inflight.scheduler.queue_policy import DELAY, QueuePolicies
from inflight.scheduler.timers import Timers


class WaitingQueue:
    """Orders requests by priority level, unless the policy weighs levels itself, and then by the policy.

    If the `timeout_action` of a level is DELAY, requests that have waited longer than their timeout come last in the
    level, or last of all if the policy weighs levels itself. Priority is strict, as in Triton: while requests of a
    higher level wait, those of a lower level wait too.
    """

    def __init__(self, limits: QueuePolicies, policy: SchedulingPolicy | None = None) -> None:
        self._limits = limits
        self._policy = policy or Fcfs()
        self._orders: dict[tuple[int, bool], Order] = {}
        """Waiting requests by (level, whether they were delayed). There are no empty orders."""
        self._here: dict[str, tuple[Request, tuple[int, bool]]] = {}
        self._held: list[tuple[Request, bool]] = []
        self._timers = Timers()
        # Other threads read these three, so they include requests that are held, which still wait.
        self._size = 0
        self._at_level: Counter[int] = Counter()
        self._of_adapter: Counter[str] = Counter()
        self._numbers = itertools.count()
        self.num_tokens = 0
        """Known tokens of all waiting requests."""
        self.num_leftover = 0
        """How many of the waiting requests are leftover ones."""
        self.num_leftover_tokens = 0
        """Known tokens of these."""

    def __len__(self) -> int:
        return self._size

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._here

    def __iter__(self) -> Iterator[Request]:
        """All requests in order."""
        for key in sorted(self._orders):
            yield from self._orders[key]

    def count(self, level: int) -> int:
        """Return how many requests of a priority level wait."""
        return self._at_level[level]

    def adapters(self) -> list[str]:
        """Return the names of the LoRA adapters that waiting requests ask for."""
        return list(self._of_adapter)

    def has(self, request: Request) -> bool:
        """Return whether this request object waits, and not another one with the same id."""
        return self._here.get(request.request_id, (None,))[0] is request

    def is_delayed(self, request: Request) -> bool:
        """Return whether a waiting request was delayed because it has waited longer than its timeout."""
        return self._here[request.request_id][1][1]

    def add(self, request: Request) -> None:
        """Queue a new request."""
        request.number = next(self._numbers)
        self._policy.classify(request)
        self.put(request, delayed=False, newcomer=True)
        self._count(request, 1)
        if request.wait_until is not None:
            self._timers.set(request, request.wait_until)

    def put_back(self, request: Request) -> None:
        """Queue a preempted request again. It no longer times out in the queue."""
        self.put(request, delayed=False)
        self._count(request, 1)

    def _count(self, request: Request, change: int) -> None:
        self._size += change
        self._at_level[request.priority] += change
        if name := request.options.lora_name:
            self._of_adapter[name] += change
            if not self._of_adapter[name]:
                del self._of_adapter[name]
        self.num_tokens += change * len(request.token_ids)
        if request.is_leftover:
            self.num_leftover += change
            self.num_leftover_tokens += change * len(request.token_ids)

    def put(self, request: Request, *, delayed: bool, newcomer: bool = False) -> None:
        """Insert a request into its order. `add`, `put_back` and `remove` update the counts, not this method."""
        key = (0 if self._policy.merges_levels else request.priority, delayed)
        if key not in self._orders:
            self._orders[key] = (Fcfs() if delayed else self._policy).order()
        self._orders[key].add(request, newcomer=newcomer)
        self._here[request.request_id] = request, key

    def first(self) -> Request | None:
        """Return the next request without removing it; None if no request waits."""
        return self._orders[min(self._orders)].first() if self._orders else None

    def peek(self, count: int) -> list[Request]:
        """Return the first `count` requests in order, without removing them."""
        found: list[Request] = []
        while len(found) < count and (request := self.first()) is not None:
            self.hold(request)
            found.append(request)
        self.release_held()
        return found

    def hold(self, request: Request) -> None:
        """Let other requests pass this one until `release_held`."""
        self._held.append((request, self.take(request)))

    def release_held(self) -> None:
        """Put the held requests back into their positions."""
        for request, delayed in self._held:
            self.put(request, delayed=delayed)
        self._held.clear()

    def remove(self, request_id: str) -> Request | None:
        """Remove and return a request; None if it does not wait."""
        if request_id not in self._here:
            return None
        request, _ = self._here[request_id]
        self._timers.clear(request_id)
        self.take(request)
        self._count(request, -1)
        return request

    def take(self, request: Request) -> bool:
        """Remove a waiting request but keep its timer and the counts. Return whether the request was delayed."""
        _, key = self._here.pop(request.request_id)
        order = self._orders[key]
        order.remove(request.request_id)
        if not len(order):
            del self._orders[key]
        return key[1]

    @property
    def next_due(self) -> float:
        """When `expire` next has something to do; infinity if never."""
        return min([self._timers.next_due, *(order.next_due for order in self._orders.values())])

    def expire(self, now: float) -> list[tuple[Request, str]]:
        """Apply `timeout_action` to requests whose `wait_until` has passed, and remove those that the policy gives up.

        Return the removed requests, each with the reason.
        """
        ended = [given_up for order in self._orders.values() for given_up in order.expire(now)]
        for request, _ in ended:
            self.remove(request.request_id)
        for request in self._timers.due(now):
            self.take(request)
            if self._limits.of(request.priority).timeout_action == DELAY:
                request.number = next(self._numbers)  # The request loses its old position.
                self.put(request, delayed=True)
            else:
                self._count(request, -1)
                assert request.wait_until is not None
                bound = round((request.wait_until - request.arrival) * 1e6)
                ended.append((request, f"Request timeout expired: it waited longer than its timeout, {bound} us"))
        return ended
