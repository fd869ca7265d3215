"""Serves a workload on the real engine in process, open loop: requests arrive at their times, however busy the engine
is."""

import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from inflight.config import EngineConfig
from inflight.errors import QueueFull
from inflight.outputs import TokenEvent
from load_tests.arrivals import Gamma
from load_tests.lengths import Uniform
from load_tests.simulate.recorder import Recorder
from load_tests.simulate.result import Result
from load_tests.simulate.scripted_request import scripted_request
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Arrival, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inflight import Engine

_WARM_UP = [Arrival(0.0, prompt, 4, 4) for prompt in (8, 64, 128)]


def run_engine(arrivals: Sequence[Arrival], config: EngineConfig, *, progress: bool = False) -> Result:
    """Load the model, warm it up and serve `arrivals`.

    Raises:
        RuntimeError: a step failed.
    """
    # Imported here so that a simulation needs no torch.
    from inflight import Engine

    engine = Engine(config)
    _Run(engine, _WARM_UP, progress=False).serve()
    result = _Run(engine, arrivals, progress=progress).serve()
    engine.outputs.flush_traces()
    return result


class _Run:
    """One thread submits the requests, as clients would. This thread runs the steps."""

    def __init__(self, engine: "Engine", arrivals: Sequence[Arrival], *, progress: bool) -> None:
        self._engine = engine
        self._core = engine.core
        self._policies = engine.config.queue_policies
        self._arrivals = arrivals
        self._recorder = Recorder(arrivals)
        self._bar = tqdm(total=len(arrivals), unit="request", disable=not progress, leave=False)
        self._origin = time.monotonic()

    def serve(self) -> Result:
        before = self._engine.stats()
        with self._bar, self._clients():
            while self._recorder.num_ended < len(self._arrivals):
                if self._core.has_work:
                    self._core.wait_for_batch()
                    self._take(self._core.step())
                else:
                    time.sleep(0.001)
        after = self._engine.stats()
        return self._recorder.result(
            steps=after.steps - before.steps,
            step_seconds=after.step_seconds - before.step_seconds,
            padding_tokens=after.padding_tokens - before.padding_tokens,
            swaps=after.swaps - before.swaps,
            tenants=after.tenants,
        )

    @contextmanager
    def _clients(self) -> "Iterator[None]":
        thread = threading.Thread(target=self._submit, daemon=True)
        thread.start()
        yield
        thread.join()

    def _submit(self) -> None:
        for index, arrival in enumerate(self._arrivals):
            request = scripted_request(arrival, index, self._origin, distinct=True)
            self._policies.apply(request)
            time.sleep(max(0.0, request.arrival - time.monotonic()))
            try:
                self._recorder.arrived(request)
                self._core.submit(request)
            except QueueFull:
                self._recorder.expired(request)

    def _take(self, events: Sequence[TokenEvent]) -> None:
        now = 0.0
        for event in events:
            if event.error is not None and not event.token_ids:
                self._recorder.expired(event.request)
            elif event.request.last_token_at is not None:
                now = event.request.last_token_at - self._origin
        got = [event for event in events if event.token_ids]
        self._recorder.tokens([(event.request, len(event.token_ids)) for event in got], now)
        for event in got:
            if event.finish_reason is not None:
                self._recorder.finished(event.request, now)
        stats = self._engine.stats()
        self._recorder.sample(now, stats.running, stats.tuned)
        self._bar.update(self._recorder.num_ended - self._bar.n)


def engine_config(folder: Path, **settings: object) -> EngineConfig:
    """Settings for a run with the default model on the CPU."""
    return EngineConfig(model=str(folder), dtype="bfloat16", device="cpu", **settings)  # type: ignore[arg-type]


def calibrate(folder: Path) -> StepCost:
    """Step times on this machine, fitted to the trace of a short run with prompts and batches of all sizes."""
    stream = Stream(Gamma(4.0), Uniform(16, 256), Uniform(8, 48))
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch, "trace.json")
        settings = {"max_num_seqs": 8, "kv_cache_tokens": 16_384, "enable_prefix_caching": False}
        run_engine(stream.make(32, seed=0), engine_config(folder, trace_file=str(trace), **settings), progress=True)
        return StepCost.of_trace(trace)
