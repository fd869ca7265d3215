"""Records when tokens are generated, in a simulation or on the real engine."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from inflight.request import Request
from inflight.scheduler.committed import Committed
from inflight.scheduler.policies.fair import OUTPUT_PRICE, PROMPT_PRICE
from inflight.tenant_costs import TenantUse
from load_tests.simulate.result import Result, SchedulerSample
from load_tests.simulate.scripted_request import ScriptedRequest
from load_tests.traffic import Arrival

_NEVER = -1.0


class Recorder:
    """Collects the data of a `Result`. Times are seconds from the start of the traffic."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._arrivals = arrivals
        self._first = [_NEVER] * len(arrivals)
        self._last = [_NEVER] * len(arrivals)
        self._finish = [_NEVER] * len(arrivals)
        self._cached = [0] * len(arrivals)
        self._preemptions = [0] * len(arrivals)
        self._gaps, self._gap_counts, self._gap_tenants = array("d"), array("q"), array("q")
        names = sorted({arrival.tenant for arrival in arrivals})
        self._tenants = len(names) > 1
        self._number_of = {name: number for number, name in enumerate(names)}
        self._service: dict[str, float] = defaultdict(float)
        self._waiting: Counter[str] = Counter()
        self._samples: list[SchedulerSample] = []
        self.num_ended = 0
        """Requests that finished or were turned away."""

    def arrived(self, request: Request) -> None:
        """A request was queued."""
        self._waiting[request.tenant] += 1

    def refused(self) -> None:
        """A request was rejected on arrival."""
        self.num_ended += 1

    def expired(self, request: Request) -> None:
        """A waiting request reached its deadline and was dropped."""
        self._waiting[request.tenant] -= 1
        self.num_ended += 1

    def answered(self, outcomes: Sequence[Committed], now: float) -> None:
        """A step gave these requests tokens."""
        self.tokens([(outcome.request, len(outcome.token_ids)) for outcome in outcomes], now)
        for outcome in outcomes:
            if outcome.finish_reason is not None:
                self.finished(outcome.request, now)

    def tokens(self, new: Sequence[tuple[Request, int]], now: float) -> None:
        """Each request got so many tokens together. The time since its last token is divided evenly among them."""
        last_at = self._last
        gaps: dict[tuple[float, str, int], int] = {}
        for request, count in cast(Sequence[tuple[ScriptedRequest, int]], new):
            last = last_at[request.index]
            if last == _NEVER:
                self._began(request, now)
            else:
                # Most requests got their last token at the same time, so a step has few distinct gaps.
                gap = last, request.tenant, count
                gaps[gap] = gaps.get(gap, 0) + 1
            last_at[request.index] = now
        for (last, tenant, count), times in gaps.items():
            self._gaps.append((now - last) / count)
            self._gap_counts.append(times * count)
            self._gap_tenants.append(self._number_of[tenant])
        if self._tenants:
            for served, count in new:
                self._service[served.tenant] += OUTPUT_PRICE * count

    def _began(self, request: ScriptedRequest, now: float) -> None:
        self._first[request.index] = now
        self._cached[request.index] = request.num_cached
        self._waiting[request.tenant] -= 1
        if self._tenants:
            self._service[request.tenant] += PROMPT_PRICE * (len(request.prompt_ids) - request.num_cached)

    def finished(self, request: Request, now: float) -> None:
        """A request has got all its tokens."""
        assert isinstance(request, ScriptedRequest)
        self._finish[request.index] = now
        self._preemptions[request.index] = request.num_preemptions
        self.num_ended += 1

    @property
    def last_running(self) -> int:
        """How many requests ran at the last sample. 0 before the first one."""
        return self._samples[-1].running if self._samples else 0

    def sample(self, now: float, running: int, tuned: Mapping[str, float]) -> None:
        """Record the state of the scheduler, with the settings that are tuned."""
        self._samples.append(SchedulerSample(now, running, dict(self._service), dict(self._waiting), tuned))

    def result(
        self,
        *,
        steps: int,
        step_seconds: float,
        padding_tokens: int,
        swaps: int,
        tenants: Mapping[str, TenantUse],
    ) -> Result:
        """The collected data with the totals of all steps."""
        arrivals = self._arrivals
        return Result(
            arrivals=arrivals,
            arrival=np.array([arrival.at for arrival in arrivals]),
            prompt=np.array([arrival.prompt_tokens for arrival in arrivals]),
            output=np.array([arrival.output_tokens for arrival in arrivals]),
            first_token=_times(self._first),
            finish=_times(self._finish),
            cached=np.array(self._cached),
            preemptions=np.array(self._preemptions),
            gaps=np.array(self._gaps),
            gap_counts=np.array(self._gap_counts),
            gap_tenants=np.array(self._gap_tenants),
            samples=self._samples,
            steps=steps,
            step_seconds=step_seconds,
            padding_tokens=padding_tokens,
            swaps=swaps,
            tenants=tenants,
        )


def _times(seconds: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times = np.array(seconds)
    times[times == _NEVER] = np.nan
    return times
