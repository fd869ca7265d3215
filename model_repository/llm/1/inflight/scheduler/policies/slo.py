"""Least slack first: the time left to meet the target time to first token."""

from collections.abc import Callable, Iterator

from inflight.request import Request
from inflight.scheduler.policies.policy import KeyedOrder, Order, SchedulingPolicy
from inflight.scheduler.timers import Timers

# A lost request is ordered as if it could start this many targets later. So it waits behind the requests that can still
# be in time, but goes before much later ones.
_GRACE = 10


class SloAware(SchedulingPolicy):
    """Admits first the request that must start soonest to meet its target.

    The latest start is the deadline for the first token minus the predicted prefill time. If the request has a time
    limit for all of its answer, it must also start early enough for the predicted length. Under overload, earliest
    deadline first breaks down: all requests are late, one after another. So a request that can no longer meet its
    target is shed, or lets the others pass. Where only the time limit can no longer be met, the target alone counts.
    """

    ranks_by_prefix = True

    def __init__(
        self,
        target: float,
        *,
        shed: bool,
        prefill_seconds: Callable[[Request], float],
        answer_seconds: Callable[[Request], float],
    ) -> None:
        """`target` is in seconds, for requests without one. `prefill_seconds` predicts a request's prefill time, and
        `answer_seconds` the least time that its other tokens take."""
        self.target = target
        self.shed = shed
        self.prefill_seconds = prefill_seconds
        self.answer_seconds = answer_seconds

    def order(self) -> Order:
        return _SlackOrder(self)

    def latest_start(self, request: Request) -> float:
        """Return when a request must start to be in time. After its first token, it has no target left to meet.

        A beam search that was preempted has had that token, though it begins again without any.
        """
        if request.first_token_at is not None:
            return request.arrival
        return request.arrival + self.target_of(request) - self.prefill_seconds(request)

    def begin_by(self, request: Request) -> float:
        """Return when a request must start to be in time with its first token and, as predicted, with its last one."""
        start = self.latest_start(request)
        if request.deadline is None:
            return start
        return min(start, request.deadline - self.prefill_seconds(request) - self.answer_seconds(request))

    def target_of(self, request: Request) -> float:
        """Return the target time of a request from arrival to first token, in seconds."""
        target_ms = request.options.target_ttft_ms
        return self.target if target_ms is None else target_ms / 1e3


class _SlackOrder(Order):
    def __init__(self, policy: SloAware) -> None:
        self._policy = policy
        self._keyed = KeyedOrder(self._key)
        self._begin_by: dict[str, float] = {}
        self._latest_start: dict[str, float] = {}
        self._timers = Timers()
        self._lost: set[str] = set()

    def _key(self, request: Request) -> float:
        grace = _GRACE * self._policy.target_of(request) if request.request_id in self._lost else 0.0
        return self._begin_by[request.request_id] + grace

    def add(self, request: Request, *, newcomer: bool = False) -> None:
        self._latest_start[request.request_id] = self._policy.latest_start(request)
        self._begin_by[request.request_id] = self._policy.begin_by(request)
        self._keyed.add(request)
        if request.first_token_at is None:
            self._timers.set(request, self._begin_by[request.request_id])

    def remove(self, request_id: str) -> None:
        self._keyed.remove(request_id)
        self._timers.clear(request_id)
        del self._begin_by[request_id], self._latest_start[request_id]
        self._lost.discard(request_id)

    def first(self) -> Request | None:
        return self._keyed.first()

    def __len__(self) -> int:
        return len(self._keyed)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._keyed)

    def expire(self, now: float) -> list[tuple[Request, str]]:
        given_up = []
        while due := self._timers.due(now):
            for request in due:
                latest_start = self._latest_start[request.request_id]
                if self._begin_by[request.request_id] < latest_start:  # It can still be in time with its first token.
                    self._begin_by[request.request_id] = latest_start
                    self._timers.set(request, latest_start)
                elif self._policy.shed:
                    target = round(self._policy.target_of(request) * 1e3)
                    given_up.append((request, f"target_ttft_ms is {target}; it can't be met any more"))
                    continue
                else:
                    self._lost.add(request.request_id)
                self._keyed.remove(request.request_id)
                self._keyed.add(request)
        return given_up

    @property
    def next_due(self) -> float:
        return self._timers.next_due
