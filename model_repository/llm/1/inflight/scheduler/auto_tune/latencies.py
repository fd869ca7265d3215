"""Latencies of the newest requests, relative to their targets."""

from collections import deque
from collections.abc import Iterable, Sequence

from inflight.request import Request
from inflight.scheduler.committed import Committed

_WINDOW_SECONDS = 3.0
_MAX_KEPT = 256
_LATE_PERCENT = 90
_SHORT_PERCENT = 20
# While a request runs, the mean of fewer gaps says little about its mean at the end.
_ENOUGH_TOKENS = 32


class Latencies:
    """Times to first token and mean gaps of a few seconds, as fractions of the targets: 1 is at the target."""

    def __init__(self, target_ttft: float, target_itl: float) -> None:
        """The targets are in seconds. A request's own `target_ttft_ms` replaces the first."""
        self._target_ttft = target_ttft
        self._target_itl = target_itl
        self._firsts: deque[tuple[float, float]] = deque(maxlen=_MAX_KEPT)
        """When a first token came, and how late it was."""
        self._ended: deque[tuple[float, float, float]] = deque(maxlen=_MAX_KEPT)
        """When a request ended, when its first token came, and its mean gap."""
        self._used: deque[float] = deque(maxlen=_MAX_KEPT)
        """Parts of `max_tokens` that the newest requests used."""

    def target_ttft(self, request: Request) -> float:
        """Return a request's target for the time to its first token, in seconds."""
        own = request.options.target_ttft_ms
        return self._target_ttft if own is None else own / 1e3

    def committed(self, outcomes: Iterable[Committed], now: float) -> None:
        """Learn from the new tokens of a step, which were known at `now`."""
        for outcome in outcomes:
            request, new = outcome.request, len(outcome.token_ids)
            if new and request.num_output == new:
                self._firsts.append((now, (now - request.arrival) / self.target_ttft(request)))
            if outcome.finish_reason is not None and request.num_output > 1:
                self._ended.append((now, request.first_token_at or now, self._mean_gap(request)))
                self._used.append(request.num_output / request.max_tokens)

    def firsts(self, now: float, next_request: Request | None) -> float:
        """Return the 90th percentile of first tokens. The request that is next in the queue counts with its wait."""
        _forget(self._firsts, now)
        times = [late for _, late in self._firsts]
        if next_request is not None and next_request.first_token_at is None:
            times.append((now - next_request.arrival) / self.target_ttft(next_request))
        return _percentile(times, _LATE_PERCENT)

    def gaps(self, now: float, running: Iterable[Request], since: float) -> float:
        """Return the 90th percentile of the mean gaps: those of running requests, and of those that ended lately.

        Requests whose first token came before `since` do not count.
        """
        _forget(self._ended, now)
        means = [gap for _, began, gap in self._ended if began >= since]
        means += [
            self._mean_gap(request)
            for request in running
            if request.num_output >= _ENOUGH_TOKENS and (request.first_token_at or now) >= since
        ]
        return _percentile(means, _LATE_PERCENT)

    def least_used(self) -> float:
        """Return the part of `max_tokens` that four of five requests use at least."""
        return _percentile(self._used, _SHORT_PERCENT)

    def _mean_gap(self, request: Request) -> float:
        if request.first_token_at is None or request.last_token_at is None:
            return 0.0
        return (request.last_token_at - request.first_token_at) / (request.num_output - 1) / self._target_itl


def _forget(values: deque[tuple[float, float]] | deque[tuple[float, float, float]], now: float) -> None:
    while values and values[0][0] < now - _WINDOW_SECONDS:
        values.popleft()


def _percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[(len(values) - 1) * percent // 100] if values else 0.0
