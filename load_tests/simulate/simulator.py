"""Runs the engine's scheduler over a workload in virtual time, without model and threads."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tqdm import tqdm

from inflight.config import EngineConfig
from load_tests.simulate.acceptance import AcceptanceProfile, ProfileDrafter
from load_tests.simulate.recorder import Recorder
from load_tests.simulate.result import Result
from load_tests.simulate.scripted_request import scripted_request
from load_tests.simulate.step_cost import StepCost
from load_tests.simulate.virtual_engine import VirtualEngine
from load_tests.traffic import Arrival

_STEPS_PER_SAMPLE = 16
_TURNAROUND = 0.003
"""Seconds from the last token of an answer until the user's next request arrives, in a closed loop. The next step has
begun by then."""


def simulate(
    arrivals: Sequence[Arrival],
    config: EngineConfig,
    cost: StepCost,
    *,
    users: int | None = None,
    acceptance: AcceptanceProfile | None = None,
    progress: bool = False,
) -> Result:
    """Serve `arrivals` as an engine with these settings would on a machine with these step times.

    With `users`, the loop is closed: so many users send the requests in their order, each the next one shortly after
    its last one has ended. The times of the arrivals are ignored. Where `speculative_config` is set, `acceptance` says
    how often drafts are right.

    Raises:
        ValueError: the cache has no size, a request could never fit into it, or only one of `speculative_config` and
            `acceptance` is given.
    """
    simulation = Simulation(arrivals, config, cost, users=users, acceptance=acceptance)
    with tqdm(total=len(arrivals), unit="request", disable=not progress) as bar:
        while simulation.step():
            bar.update(simulation.recorder.num_ended - bar.n)
    return simulation.result()


class Simulation:
    """`EngineCore` and its loop on a virtual clock."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        config: EngineConfig,
        cost: StepCost,
        *,
        users: int | None = None,
        acceptance: AcceptanceProfile | None = None,
    ) -> None:
        if bool(config.speculative_config) != (acceptance is not None):
            raise ValueError("speculative_config and the acceptance of drafts must be given together")
        self._engine = VirtualEngine(config, cost, None if acceptance is None else ProfileDrafter(acceptance))
        self.scheduler = self._engine.scheduler
        self.now = 0.0
        self._arrivals = list(arrivals) if users is None else [replace(arrival, at=math.inf) for arrival in arrivals]
        self.recorder = Recorder(self._arrivals)
        self._users = users
        self._sent = 0
        """Number of requests that users have sent."""
        self._next = 0
        # Without shared prefixes a cache finds nothing, and hashing blocks is most of the work.
        self._distinct = config.enable_prefix_caching or config.length_predictor != "tenant"

    def step(self) -> bool:
        """Run one step, or wait for something to do. Return False when all requests are done."""
        scheduler, recorder = self.scheduler, self.recorder
        if self._users is not None:
            self._send(self._users)
        self._take_arrivals()
        for request, _, _ in scheduler.expire(self.now):
            recorder.expired(request)
        end = self._engine.begin(self.now)
        if end is None:
            return self._wait()
        self.now = end
        recorder.answered(self._engine.end(end), end)
        if self._engine.steps % _STEPS_PER_SAMPLE == 0:
            recorder.sample(self.now, len(scheduler.running), {} if scheduler.tuner is None else scheduler.tuner.values)
        return True

    def _send(self, users: int) -> None:
        """Let those of the users send their next request who wait for no answer."""
        while self._sent < min(users + self.recorder.num_ended, len(self._arrivals)):
            at = self.now + _TURNAROUND if self._sent >= users else 0.0
            self._arrivals[self._sent] = replace(self._arrivals[self._sent], at=at)
            self._sent += 1

    def _take_arrivals(self) -> None:
        while self._next < len(self._arrivals) and self._arrivals[self._next].at <= self.now:
            request = scripted_request(self._arrivals[self._next], self._next, 0.0, distinct=self._distinct)
            self._next += 1
            if self._engine.accepts(request):
                self.recorder.arrived(request)
                self.scheduler.add(request)
            else:
                self.recorder.refused()

    def _wait(self) -> bool:
        """Advance the time to the next arrival or, if a batch is being collected, to its deadline."""
        moments = [self._arrivals[self._next].at] if self._next < len(self._arrivals) else []
        if self.scheduler.wakes_at is not None:
            moments.append(self.scheduler.wakes_at)
        if not moments:
            return False
        self.now = max(self.now, min(moments))
        return True

    def result(self) -> Result:
        """The result of the simulation."""
        return self.recorder.result(
            steps=self._engine.steps,
            step_seconds=self._engine.step_seconds,
            padding_tokens=self._engine.padding,
            swaps=self.scheduler.preemptor.num_swaps,
            tenants={} if self.scheduler.costs is None else self.scheduler.costs.by_tenant,
        )
