"""Publishes the engine's metrics on Triton's /metrics.

Triton's custom metrics need care (24.10):
- Use from several threads crashes the server. So one thread creates, updates and deletes them.
- If a call on a metric fails, such as a negative increment of a counter, Triton corrupts the memory that it shares with
  the model and crashes at the next request. So this module makes no call that could fail.
- `set` holds the GIL until Triton has answered, and `increment` does not. So gauges are updated with increments too.
- While a model is loaded again, two processes would have metrics with the same labels; see `SeriesLock`. So they are
  created once the process before has deleted its own.
- A metric that its model does not delete stays on /metrics after the model is unloaded.
- If metrics are off (`--allow-metrics=false`), all calls succeed and have no effect.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import triton_python_backend_utils as pb_utils

from inflight import Engine
from inflight.metric_families.families import FAMILIES, VLLM_CACHE_INFO, VLLM_FAMILIES, VLLM_LORA_INFO
from inflight.metric_families.family import COUNTER, GAUGE, HISTOGRAM, Family
from inflight.metric_families.requests import REFUSAL_REASONS
from inflight.metrics import FILLED_BOUNDS, Buckets
from inflight.stats import EngineStats
from serving.lora_info import LoraInfo
from serving.series_lock import SeriesLock

logger = logging.getLogger(__name__)


class Refusals:
    """Counts the requests that were refused on arrival, by reason. Any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(REFUSAL_REASONS, 0)

    def add(self, reason: str) -> None:
        """Count one request; `reason` is one of `REFUSAL_REASONS`."""
        with self._lock:
            self._counts[reason] += 1

    def counts(self) -> dict[str, int]:
        """All counts so far, by reason."""
        with self._lock:
            return dict(self._counts)


class MetricsExport:
    """The metrics of one model instance. All calls, including the constructor, must come from the same thread."""

    def __init__(self, engine: Engine, refusals: Refusals, labels: Mapping[str, str], *, vllm_names: bool) -> None:
        """With `vllm_names`, the metrics that vLLM has too are there a second time, by its names and labels."""
        self._engine = engine
        self._refusals = refusals
        self._labels = dict(labels)
        self._vllm_names = vllm_names
        self._lock = SeriesLock(labels)
        self._has_failed = False
        self._families: list[Any] = []
        """The families must outlive their metrics, so they are kept here."""
        self._constant: Any = None
        """A metric whose value does not change."""
        self._lora_info: LoraInfo | None = None
        self._histograms: defaultdict[str, list[Any]] = defaultdict(list)
        self._readings: list[_Reading] = []
        self._live: list[_Reading] = []
        """Those that are updated more often."""

    def _open(self) -> None:
        if self._vllm_names:
            self._add_vllm()
        for family in FAMILIES:
            self._add(family)

    def _add_vllm(self) -> None:
        ours = self._labels
        self._labels = {**ours, "model_name": ours["model"], "engine": "0"}
        for family in VLLM_FAMILIES:
            self._add(family)
        stats = self._engine.stats()
        cache = {"block_size": str(stats.block_size), "num_gpu_blocks": str(stats.blocks_total)}
        info = self._family(VLLM_CACHE_INFO, "Settings of the KV cache.", GAUGE)
        self._constant = info.Metric(labels={**self._labels, **cache})
        self._constant.set(1)
        if self._engine.model.adapters is not None:
            self._add_lora_info(self._labels)
        self._labels = ours

    def _add_lora_info(self, common: Mapping[str, str]) -> None:
        def make(labels: dict[str, str]) -> tuple[Any, Any]:
            family = _new_family(VLLM_LORA_INFO, "When these LoRA adapters began to be in use together.", GAUGE)
            return family, family.Metric(labels={**common, **labels})

        self._lora_info = LoraInfo(make)

    def _add(self, family: Family) -> None:
        if family.observes in FILLED_BOUNDS:
            self._add_filled(family, self._engine.core.metrics.histograms[family.observes])
        elif family.observes is not None:
            metric = self._family(family.name, family.help, HISTOGRAM)
            made = metric.Metric(labels=self._labels, buckets=list(family.buckets))
            self._histograms[family.observes].append(made)
        else:
            read = family.read or (lambda _: self._refusals.counts())
            self._add_reading(family.name, family.help, family.kind, family.label, read)
            if family.is_live:
                self._live.append(self._readings[-1])

    def _add_filled(self, family: Family, filled: Buckets) -> None:
        """Add a histogram whose buckets the engine fills, as the counters that make up a Prometheus histogram."""
        self._add_reading(f"{family.name}_sum", family.help, COUNTER, None, lambda _: {"": filled.sum})
        self._add_reading(f"{family.name}_count", family.help, COUNTER, None, lambda _: {"": sum(filled.counts)})
        self._add_reading(f"{family.name}_bucket", family.help, COUNTER, "le", lambda _: _cumulative(filled))

    def _add_reading(
        self, name: str, help: str, kind: str, label: str | None, read: Callable[[EngineStats], Mapping[str, float]]
    ) -> None:
        family, labels = self._family(name, help, kind), self._labels

        def make(value: str) -> Any:
            metric = family.Metric(labels=labels if label is None else {**labels, label: value})
            if kind == GAUGE:
                # A model process that crashed may have left a gauge with the same name.
                metric.set(0)
            return metric

        self._readings.append(_Reading(name, kind, read, make))
        # At once: nobody shall take the 0 of a new gauge for its value.
        self._readings[-1].update(self._engine.stats())

    def _family(self, name: str, help: str, kind: str) -> Any:
        self._families.append(_new_family(name, help, kind))
        return self._families[-1]

    def update(self, *, only_live: bool = False) -> None:
        """Publish the engine's current numbers: all, or only those that routers read."""
        if self._has_failed or not self._lock.acquire():
            return
        try:
            if not self._families:
                self._open()
            if not only_live:
                self._observe()
            stats = self._engine.stats()
            for reading in self._live if only_live else self._readings:
                reading.update(stats)
            if self._lora_info is not None:
                self._lora_info.update(stats)
        except pb_utils.TritonModelException as error:
            logger.error("metrics are off from now on because of an error: %s", error)
            self._has_failed = True
            self.close()

    def _observe(self) -> None:
        observations = self._engine.core.metrics.observations
        while self._histograms and observations:
            name, value = observations.popleft()
            for histogram in self._histograms[name]:
                histogram.observe(value)

    def close(self) -> None:
        """Remove everything from /metrics: first the metrics, then their families."""
        self._readings.clear()
        self._live.clear()
        self._constant = self._lora_info = None
        self._histograms.clear()
        self._families.clear()
        self._lock.release()


class _Reading:
    """The metrics that show one number of the engine, one metric per label value."""

    def __init__(
        self, name: str, kind: str, read: Callable[[EngineStats], Mapping[str, float]], make: Callable[[str], Any]
    ) -> None:
        """`make` creates the metric of a label value."""
        self._name, self._kind = name, kind
        self._read = read
        self._make = make
        self._metrics: dict[str, Any] = {}
        self._shown: dict[str, float] = {}
        self._fallen: set[str] = set()
        """Counters that fell, which Triton would not survive. That is a bug, which the log tells once."""

    def create(self, stats: EngineStats) -> None:
        """Create the metrics of the label values that are new, such as tenants."""
        for label in self._read(stats).keys() - self._metrics.keys():
            self._metrics[label] = self._make(label)
            self._shown[label] = 0.0

    def update(self, stats: EngineStats) -> None:
        self.create(stats)
        for label, value in self._read(stats).items():
            if value == self._shown[label]:
                continue
            if self._kind == COUNTER and value < self._shown[label]:
                if label not in self._fallen:
                    logger.error("%s fell from %g to %g; it is not shown", self._name, self._shown[label], value)
                    self._fallen.add(label)
                continue
            self._metrics[label].increment(value - self._shown[label])
            self._shown[label] = value


def _new_family(name: str, help: str, kind: str) -> Any:
    kinds = pb_utils.MetricFamily
    return kinds(name=name, description=help, kind=getattr(kinds, kind.upper()))


def _cumulative(buckets: Buckets) -> dict[str, float]:
    """The number of values up to each bound, the largest bound first.

    The counters are updated in this order, so at any time a larger bound has at least the count of a smaller one.
    """
    bounds = [*(f"{bound:g}" for bound in buckets.bounds), "+Inf"]
    return dict(reversed(list(zip(bounds, accumulate(buckets.counts), strict=True))))
