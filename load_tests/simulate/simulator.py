"""Runs the engine's scheduler over a workload in virtual time, without model and threads."""

import math
from collections.abc import Sequence

from tqdm import tqdm

from inflight.config import EngineConfig
from inflight.request import Request
from load_tests.simulate.acceptance import AcceptanceProfile, ProfileDrafter
from load_tests.simulate.loops import ClosedLoop, Loop, OpenLoop
from load_tests.simulate.recorder import Recorder
from load_tests.simulate.result import Result
from load_tests.simulate.scripted_request import ScriptedRequest, scripted_request
from load_tests.simulate.step_cost import StepCost
from load_tests.simulate.virtual_engine import VirtualEngine
from load_tests.traffic import Arrival

_STEPS_PER_SAMPLE = 16


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
    its last one has ended. All turns of a chat come from one user. The times of the arrivals are ignored. Where
    `speculative_config` is set, `acceptance` says how often drafts are right.

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
        self._loop: Loop = OpenLoop(arrivals) if users is None else ClosedLoop(arrivals, users)
        self._arrivals = list(arrivals)
        """In the order in which they have arrived. Those that will arrive follow in any order."""
        self._arrived = 0
        self.recorder = Recorder(self._arrivals)
        # Without shared prefixes a cache finds nothing, and hashing blocks is most of the work.
        self._distinct = config.enable_prefix_caching or config.length_predictor != "tenant"

    def step(self) -> bool:
        """Run one step, or wait for something to do. Return False when all requests are done."""
        scheduler, recorder = self.scheduler, self.recorder
        self._take_arrivals()
        for request, _, _ in scheduler.expire(self.now):
            recorder.expired(request)
            self._ended(request, answered=False)
        end = self._engine.begin(self.now)
        if end is None:
            return self._wait()
        self.now = end
        outcomes = self._engine.end(end)
        recorder.answered(outcomes, end)
        for outcome in outcomes:
            if outcome.finish_reason is not None:
                self._ended(outcome.request, answered=True)
        if self._engine.steps % _STEPS_PER_SAMPLE == 0:
            self._sample()
        return True

    def _sample(self) -> None:
        tuner = self.scheduler.tuner
        self.recorder.sample(self.now, len(self.scheduler.running), {} if tuner is None else tuner.values)

    def _take_arrivals(self) -> None:
        for arrival in self._loop.due(self.now):
            request = scripted_request(arrival, self._arrived, 0.0, distinct=self._distinct)
            self._arrivals[self._arrived] = arrival
            self._arrived += 1
            if self._engine.accepts(request):
                self.recorder.arrived(request)
                self.scheduler.add(request)
            else:
                self.recorder.refused()
                self._ended(request, answered=False)

    def _ended(self, request: Request, *, answered: bool) -> None:
        assert isinstance(request, ScriptedRequest)
        self._loop.ended(request.index, self.now, answered=answered)

    def _wait(self) -> bool:
        """Advance the time to the next arrival or, if a batch is being collected, to its deadline."""
        wakes_at = self.scheduler.wakes_at
        moment = min(self._loop.next_at, math.inf if wakes_at is None else wakes_at)
        if moment == math.inf:
            return False
        if not self.scheduler.running and self.recorder.last_running:
            self._sample()  # Otherwise the last sample before a pause would seem to hold throughout it.
        self.now = max(self.now, moment)
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
