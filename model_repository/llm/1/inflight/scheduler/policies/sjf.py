"""Shortest job first, with the tail of first come, first served."""

from collections.abc import Callable, Iterator

from inflight.request import Request
from inflight.scheduler.newest_values import NewestValues
from inflight.scheduler.output_lengths.predictor import LengthPredictor
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy
from inflight.scheduler.step_time import StepTimeModel
from inflight.scheduler.timers import Timers

_KEPT = 1000
_TAIL = 0.99
_CAUTION = 0.9
"""When a request must start depends on this quantile of its predicted length."""
_SMOOTHING = 0.05
_MOVES = 64
"""So many requests become late in a step. A burst of 100,000 would take a second."""
_PATIENCE = 1.25
"""No latest start comes before this many times the wait in order of arrival. Otherwise, while waits grow, every request
would be late, and the order would be that of arrival."""


class ShortestJobFirst(SchedulingPolicy):
    """Least expected remaining work first: uncached prompt tokens plus the output tokens still predicted, each weighed
    by the time that it takes in a full batch.

    One second of waiting offsets `ageing` tokens. All waiting requests age at the same rate, so a key that includes the
    arrival time never changes. Only finitely many requests can overtake a waiting one.

    Long jobs would pay for the short ones with a longer tail. But most of the time nobody takes as long as the 99th
    percentile does, and then a long job can wait without harm. So each request has a latest start. If it starts then,
    it ends about when the slowest hundredth ends under first come, first served. A request whose latest start has come
    goes before all others. How long the newest requests would have taken in order of arrival is known, because the work
    that waits does not depend on the order. (The Fair Sojourn Protocol, Friedman and Henderson 2003, protects jobs in
    this way against what processor sharing would give them.)

    When blocks run out, the last in this same order is preempted. So whoever is first in it gets to its end.
    """

    ranks_by_prefix = True
    ranks_running = True

    def __init__(
        self,
        ageing: float,
        lengths: LengthPredictor,
        uncached: Callable[[Request], int],
        times: StepTimeModel,
        slots: int,
    ) -> None:
        """
        Args:
            ageing: tokens per second.
            lengths: predicts output lengths.
            uncached: returns how many known tokens of a request are not in the prefix cache.
            times: predicts the times of steps.
            slots: maximum number of requests that run at once.
        """
        self._ageing = ageing
        self._lengths = lengths
        self._uncached = uncached
        self._times = times
        self._slots = slots
        self._in_order = NewestValues(kept=_KEPT)
        """From arrival to end in order of arrival, in milliseconds, of the newest requests."""
        self._token_seconds = 0.0
        """Time between two tokens of a request, of late."""

    def order(self) -> Order:
        return _Order(self)

    def rank(self, request: Request) -> tuple[float, ...]:
        leader = request.leader
        return leader.priority, not leader.is_late, leader.latest_start if leader.is_late else leader.queued_key

    def foreseen(self, request: Request) -> None:
        self.queued(request, self.work(request))

    def finished(self, request: Request) -> None:
        if request.first_step_at is None or request.first_token_at is None or request.last_token_at is None:
            return
        self._in_order.add(round(1e3 * (request.wait_in_order + request.last_token_at - request.first_step_at)))
        if request.num_output > 1:
            gap = (request.last_token_at - request.first_token_at) / (request.num_output - 1)
            self._token_seconds += _SMOOTHING * (gap - self._token_seconds)

    def work(self, request: Request) -> float:
        """Return the expected remaining work, in prompt tokens that take as long."""
        prompt_token = self._times.chunk_seconds(0, 1)
        output_token = self._times.decode_seconds(self._slots, self._slots * len(request.token_ids)) / self._slots
        weight = output_token / prompt_token if prompt_token else 1.0
        return self._uncached(request) + weight * self._lengths.remaining(request)

    def queued(self, request: Request, work: float) -> None:
        """Set the key of a request that begins to wait."""
        request.queued_key = work + self._ageing * request.arrival

    def came(self, request: Request, work_before: float) -> None:
        """Set the latest start of a new request, before which so much work waits."""
        request.wait_in_order = self._times.chunk_seconds(0, 1) * work_before
        answer = self._token_seconds * self._lengths.remaining(request, _CAUTION)
        seconds = self._times.prefill_seconds(self._uncached(request)) + answer
        tail = self._in_order.quantile_over(-1, _TAIL) / 1e3 if self._in_order.is_enough(-1) else 0.0
        request.latest_start = request.arrival + max(_PATIENCE * request.wait_in_order, tail - seconds)


class _Order(Order):
    def __init__(self, policy: ShortestJobFirst) -> None:
        self._policy = policy
        self._by_work = KeyedOrder(lambda request: request.queued_key)
        self._late = KeyedOrder(lambda request: request.latest_start)
        """Requests whose latest start has come."""
        self._timers = Timers()
        self._work: dict[str, float] = {}
        self._total = 0.0

    def add(self, request: Request, *, newcomer: bool = False) -> None:
        work = self._policy.work(request)
        self._policy.queued(request, work)
        if newcomer:
            self._policy.came(request, self._total)
        self._work[request.request_id] = work
        self._total += work
        if request.is_late:
            self._late.add(request)
        else:
            self._by_work.add(request)
            self._timers.set(request, request.latest_start)

    def remove(self, request_id: str) -> None:
        self._total -= self._work.pop(request_id)
        self._timers.clear(request_id)
        (self._late if request_id in self._late else self._by_work).remove(request_id)

    def first(self) -> Request | None:
        return self._late.first() or self._by_work.first()

    def __len__(self) -> int:
        return len(self._work)

    def __iter__(self) -> Iterator[Request]:
        yield from self._late
        yield from self._by_work

    def expire(self, now: float) -> list[tuple[Request, str]]:
        for request in self._timers.due(now, _MOVES):
            self._by_work.remove(request.request_id)
            request.is_late = True
            self._late.add(request)
        return []
