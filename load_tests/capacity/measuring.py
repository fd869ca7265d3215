"""Measures one load after another within a given time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from tqdm import tqdm

from inflight_client import AsyncClient, InflightError
from load_tests.capacity.level import Level, Repeat, percentile
from load_tests.capacity.result import LoadKind
from load_tests.capacity.search import Interrupted
from load_tests.capacity.server_metrics import ServerSample, has_engine_metrics, sampled
from load_tests.endpoints import Endpoint
from load_tests.generator import closed_loop, open_loop
from load_tests.records import Run
from load_tests.workload import Workload, part_seed

WARM_UP_SHARE = 0.3
"""Fraction of a run. Requests sent in it are not counted."""
# Eight levels with rising load and four in the search. That is enough from 1 user to a capacity between 64 and 128.
_LEVELS_EXPECTED = 12
# Estimated time to wait for the last answers after a run, as a fraction of the run's length.
_DRAIN_SHARE = 0.3
# Minimum length of a run, in multiples of an answer's latency: one answer that is not counted and a few that are.
_ANSWERS = 3.0
# Expected number of measured requests in an open-loop run. The actual number varies by chance.
_FEWEST_REQUESTS = 8
_REFRESH_SECONDS = 0.5


class NothingMeasured(RuntimeError):
    """A run was too short to measure anything."""


@dataclass
class Measuring:
    """Measures a server under one load after another until the time is up."""

    endpoint: Endpoint
    client: AsyncClient
    """Reads the server's metrics."""
    model: str
    workload: Workload
    kind: LoadKind
    repeats: int
    seconds: float
    """Time for all levels together."""
    seed: int
    """Each run derives a seed of its own from it."""
    bar: tqdm
    begun: float = field(default_factory=lambda: time.perf_counter())

    def __post_init__(self) -> None:
        self._run_seconds = self.seconds / (_LEVELS_EXPECTED * self.repeats * (1 + _DRAIN_SHARE))
        # The latency of an answer grows with the load, at most in proportion to it.
        self._latency_per_load = 0.0
        self._runs = count()
        self._ours = False

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.begun

    async def warm_up(self) -> None:
        """Let the server answer one user for a while, and find out whether it has Inflight's metrics.

        Raises NothingMeasured if the server answers no request.
        """
        self.bar.set_description_str("warm-up")
        self._ours = has_engine_metrics(await self.client.metrics(), self.model)
        requests = self.workload.requests(self._next_seed())
        run = await closed_loop(self.endpoint, 1, requests, seconds=self._run_seconds * WARM_UP_SHARE)
        if not run.done:
            raise NothingMeasured(f"the server answered none of the first requests: {run.errors()}")

    async def level(self, load: float) -> Level | None:
        """Measure a load in several repeats. Return None if the time left is too short for that.

        A level at which nothing was answered is one, too: it keeps no objective.

        Raises NothingMeasured if the time is too short for the first level, or if nothing was answered at it, and
        Interrupted if the user cancels it or the server's metrics cannot be read.
        """
        seconds = self._seconds_for(load)
        needed = seconds * (1 + _DRAIN_SHARE) * self.repeats
        if self.elapsed + needed > self.seconds:
            if not self._latency_per_load:
                raise NothingMeasured(
                    f"the first level, {self.kind.text(load)}, needs {needed:.0f} s for {self.repeats} repeats, and "
                    f"{max(0.0, self.seconds - self.elapsed):.0f} s are left; try more --minutes, fewer --repeats or "
                    "another --start"
                )
            return None
        repeats = []
        for number in range(1, self.repeats + 1):
            self.bar.set_description_str(f"{self.kind.text(load)}, {number}/{self.repeats}")
            with _interruptible():
                repeats.append(await self._repeat(load, seconds))
        # From answered requests only: the estimate of a run's length must be finite.
        answered = [percentile(repeat.counted.e2e, 50) for repeat in repeats if repeat.counted.done]
        if len(answered) < self.repeats and not self._latency_per_load:
            raise NothingMeasured(
                f"no request sent in the measured part of {seconds:.1f} s at {self.kind.text(load)} was answered "
                f"(errors: {repeats[-1].run.errors()}); try more --minutes or another --start"
            )
        if answered:
            self._latency_per_load = median(answered) / load
        return Level(load, repeats)

    def _seconds_for(self, load: float) -> float:
        """Length of a run."""
        for_answers = _ANSWERS * self._latency_per_load * load
        for_requests = 0.0 if self.kind.closed else _FEWEST_REQUESTS / load / (1 - WARM_UP_SHARE)
        return max(self._run_seconds, for_answers, for_requests)

    async def _repeat(self, load: float, seconds: float) -> Repeat:
        started = self.elapsed
        async with self._server_samples() as samples:
            run = await put_load(self.endpoint, self.workload, self.kind, load, seconds, self._next_seed())
        return Repeat(run, started, seconds * WARM_UP_SHARE, seconds, samples)

    @contextlib.asynccontextmanager
    async def _server_samples(self) -> AsyncIterator[list[ServerSample]]:
        if not self._ours:
            yield []
            return
        async with sampled(self.client, self.model) as samples:
            yield samples

    def _next_seed(self) -> int:
        """A new seed. Its prompts are new to the server, so the prefix cache contains none of them."""
        return part_seed(self.seed, next(self._runs))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Turn a cancellation, and an error of the server's metrics, into Interrupted."""
    try:
        yield
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        assert task is not None
        # The task goes on, and reports what was measured so far.
        task.uncancel()
        raise Interrupted("it was stopped") from cancelled
    except InflightError as error:
        raise Interrupted(f"the server's metrics could not be read: {error}") from error


async def put_load(
    endpoint: Endpoint, workload: Workload, kind: LoadKind, load: float, seconds: float, seed: int
) -> Run:
    """Send requests for some seconds, then wait for their answers."""
    if kind.closed:
        return await closed_loop(endpoint, int(load), workload.requests(seed), seconds=seconds)
    return await open_loop(endpoint, workload.arrivals(rate=load, seconds=seconds, seed=seed))


@contextlib.asynccontextmanager
async def ticking(measuring: Measuring) -> AsyncIterator[None]:
    """Keep the progress bar at the elapsed time."""

    async def tick() -> None:
        while True:
            measuring.bar.n = min(measuring.elapsed, measuring.seconds)
            measuring.bar.refresh()
            await asyncio.sleep(_REFRESH_SECONDS)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
