"""The measures of a run, with their units, for tables and plots."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from load_tests.capacity.level import (
    Level,
    Repeat,
    itl_p99,
    percentile,
    static_efficiency,
    ttft_p95,
    ttft_share_p95,
)
from load_tests.capacity.server_metrics import ServerUse
from load_tests.slo import Slo


@dataclass(frozen=True)
class LevelColumn:
    """A measure. `value` returns NaN for a run in which the measure is not defined."""

    name: str
    unit: str
    value: Callable[[Repeat], float]
    form: str

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def cell(self, level: Level) -> str:
        """The median of the repeats. The lowest and highest are added if they differ from it when printed."""
        low, high = (self._text(value) for value in level.spread(self.value))
        middle = self._text(level.middle(self.value))
        return middle if low == high else f"{middle} ({low}..{high})"

    def _text(self, value: float) -> str:
        return "-" if value != value else format(value, self.form)


THROUGHPUT = LevelColumn("output", "tokens/s", lambda r: r.throughput, ".1f")
REQUESTS = LevelColumn("answered", "requests/s", lambda r: r.request_rate, ".2f")
TTFT_P95 = LevelColumn("TTFT p95", "s", ttft_p95, ".3f")
ITL_P99 = LevelColumn("ITL p99", "ms", lambda r: 1e3 * itl_p99(r), ".1f")


def client_columns(slo: Slo) -> list[LevelColumn]:
    """Measures that the clients took."""
    return [
        THROUGHPUT,
        REQUESTS,
        LevelColumn("counted", "requests", lambda r: len(r.counted.records), ".0f"),
        LevelColumn("goodput", "requests/s", lambda r: r.goodput(slo), ".2f"),
        LevelColumn("in objective", "%", lambda r: 100 * r.attainment(slo), ".0f"),
        LevelColumn("TTFT p50", "s", lambda r: percentile(r.ttft, 50), ".3f"),
        TTFT_P95,
        LevelColumn("TTFT over its target, p95", "", lambda r: ttft_share_p95(r, slo), ".2f"),
        LevelColumn("ITL p50", "ms", lambda r: 1e3 * percentile(r.counted.gaps, 50), ".1f"),
        ITL_P99,
        LevelColumn("E2E p50", "s", lambda r: percentile(r.e2e, 50), ".2f"),
        LevelColumn("E2E p99", "s", lambda r: percentile(r.e2e, 99), ".2f"),
        LevelColumn("failed", "%", lambda r: 100 * r.failed, ".1f"),
        LevelColumn("sent late p99", "ms", lambda r: 1e3 * percentile(r.counted.lateness, 99), ".1f"),
        LevelColumn("generator busy", "%", lambda r: 100 * r.run.generator_busy, ".0f"),
    ]


SERVER_COLUMNS: Sequence[LevelColumn] = [
    LevelColumn("output, by its count", "tokens/s", lambda r: _use(r, lambda use: use.throughput), ".1f"),
    LevelColumn("requests in a step", "", lambda r: _use(r, lambda use: use.batch_size), ".1f"),
    LevelColumn("batch utilisation", "%", lambda r: _use(r, lambda use: 100 * use.batch_utilisation), ".1f"),
    LevelColumn("batch efficiency", "%", lambda r: _use(r, lambda use: 100 * use.batch_efficiency), ".0f"),
    LevelColumn(
        "static batches' efficiency",
        "%",
        lambda r: _use(r, lambda use: 100 * static_efficiency(r, max(1, round(use.batch_size)))),
        ".0f",
    ),
    LevelColumn("prefill/decode", "tokens", lambda r: _use(r, lambda use: use.prefill_to_decode), ".2f"),
    LevelColumn("waiting, mean", "requests", lambda r: _use(r, lambda use: use.mean_waiting), ".1f"),
    LevelColumn("waiting, max", "requests", lambda r: _use(r, lambda use: use.max_waiting), ".0f"),
    LevelColumn("running, max", "requests", lambda r: _use(r, lambda use: use.max_running), ".0f"),
    LevelColumn("KV cache, max", "%", lambda r: _use(r, lambda use: 100 * use.cache_usage), ".1f"),
    LevelColumn("preemptions", "", lambda r: _use(r, lambda use: use.preemptions), ".0f"),
]
"""Measures from the server's own metrics."""


def _use(repeat: Repeat, measure: Callable[[ServerUse], float]) -> float:
    use = repeat.use
    return float("nan") if use is None else measure(use)
