"""The thread that looks for cancellations, and keeps metrics, traces and the log up to date."""

import functools
import itertools
import threading
from collections.abc import Mapping

from inflight import Engine
from serving.aborter import Aborter
from serving.failures import Failures
from serving.guard import Guard
from serving.metrics_export import MetricsExport
from serving.progress_log import ProgressLog
from serving.stream import ResponseStream
from serving.streams import Streams

# A cancelled request must end within 200 ms: one sweep, and one or two steps.
# Each query about a request or a metric is a round trip to Triton's process, on CPU cores that the model needs.
_SWEEP_SECONDS = 0.1
_SWEEPS_PER_UPDATE = 5


class Maintenance(threading.Thread):
    """Sweeps ten times a second. One task that fails does not keep the others from their work."""

    def __init__(
        self,
        engine: Engine,
        streams: Streams,
        failures: Failures,
        aborter: Aborter,
        metric_labels: Mapping[str, str],
        *,
        vllm_names: bool,
    ) -> None:
        """`metric_labels` and `vllm_names` are those of `MetricsExport`."""
        super().__init__(name="maintenance", daemon=True)
        self._engine = engine
        self._streams = streams
        self._failures = failures
        self._aborter = aborter
        self._metric_labels = metric_labels
        self._vllm_names = vllm_names
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the thread, once all metrics, traces and log lines are complete."""
        self._stopping.set()

    def run(self) -> None:
        """Sweep until `stop`."""
        log = ProgressLog(self._engine)
        metrics = MetricsExport(self._engine, self._failures.refusals, self._metric_labels, vllm_names=self._vllm_names)
        guard = Guard()
        for sweep in itertools.count():
            if self._stopping.wait(_SWEEP_SECONDS):
                break
            for stream in self._streams:
                guard.run("looking for cancelled requests", functools.partial(self._cancel_if_asked, stream))
            guard.run("sending errors that wait", self._failures.send_waiting)
            only_live = sweep % _SWEEPS_PER_UPDATE > 0
            guard.run("updating the metrics", functools.partial(metrics.update, only_live=only_live))
            guard.run("writing traces", self._engine.outputs.flush_traces)
            guard.run("writing the log", log.tick)
        guard.run("writing traces", self._engine.outputs.close_traces)
        guard.run("updating the metrics", metrics.close)
        guard.run("writing the log", log.close)

    def _cancel_if_asked(self, stream: ResponseStream) -> None:
        if stream.is_cancelled():
            self._aborter.cancel(stream)
