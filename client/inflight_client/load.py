"""The load of a server, computed from two readings of its metrics."""

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, replace

from inflight_client.histogram import gained, quantile, total_gain
from inflight_client.metrics import MetricsSnapshot, Sample

DEFAULT_MAX_NUM_SEQS = 64
"""The engine's default, used if config.pbtxt does not set max_num_seqs."""

_RUNNING = "inflight:num_requests_running"
_COMPUTED = "inflight:computed_tokens_total"
_DRAFTED = "inflight:spec_decode_num_draft_tokens_total"
_ACCEPTED = "inflight:spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True, slots=True)
class Reading:
    """A model's metrics at one time."""

    seconds: float
    """Time of a monotonic clock."""
    metrics: MetricsSnapshot
    model: str

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one of the model's metrics. Raises KeyError if there is none."""
        return self.metrics.value(name, model=self.model, **labels)

    def has(self, name: str) -> bool:
        """Return whether the model has this metric."""
        return any(self.series(name))

    @property
    def servers(self) -> Set[str]:
        """The servers that were read. A single one has no name."""
        return {sample.labels.get("server", "") for sample in self.metrics.samples}

    def of(self, servers: Set[str]) -> "Reading":
        """Return the reading of some of the servers."""
        kept = tuple(sample for sample in self.metrics.samples if sample.labels.get("server", "") in servers)
        return replace(self, metrics=MetricsSnapshot(kept))

    def series(self, name: str, **labels: str) -> list[Sample]:
        """Return the series of one of the model's metrics, such as one for each server."""
        return list(self.metrics.select(name, model=self.model, **labels))


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles in seconds; None if nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the batch, the queue and the KV cache are at one reading."""

    running: int
    waiting: int
    waiting_at_level: Mapping[int, int]
    """The waiting requests by priority level. Empty if the model has no levels."""
    blocks_used: int
    blocks: int
    """Number of blocks of the KV cache."""


@dataclass(frozen=True, slots=True)
class Load(Occupancy):
    """The state at the later reading, and rates and latencies between the two."""

    preemptions: int
    """Preemptions since the model was loaded."""
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    finished_per_second: float
    refused_per_second: float
    prefix_hit_rate: float | None
    """Fraction of the prompt tokens that were in the prefix cache; None if there were no prompt tokens."""
    drafted_tokens_per_second: float | None
    """None if the model makes no drafts."""
    acceptance_rate: float | None
    """Fraction of the drafted tokens that were right; None if there were no drafted tokens."""
    step_fill: float | None
    """Fraction of the steps' token budget that was used; None if there were no steps, also in the next two."""
    prefill_tokens_per_step: float | None
    """Mean number of prompt tokens that went through the model in a step."""
    decode_tokens_per_step: float | None
    """The same for tokens after a request's first output token, drafted ones included."""
    first_token: Latency
    inter_token: Latency
    queue: Latency


@dataclass(frozen=True, slots=True)
class Turnover:
    """How the running batch changed from one reading to the next, in numbers of requests."""

    running: int
    joined: int
    left: int
    """Requests that ended or were preempted."""


def occupancy(reading: Reading) -> Occupancy:
    """Return the state at one reading. Raises KeyError if a metric is missing."""
    blocks = round(reading.value("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max"))
    if not blocks:
        raise KeyError("the server's metrics have no values yet")
    levels = reading.metrics.select("inflight:num_requests_waiting_by_priority", model=reading.model)
    return Occupancy(
        running=round(reading.value(_RUNNING)),
        waiting=round(reading.value("inflight:num_requests_waiting")),
        waiting_at_level={int(sample.labels["priority"]): round(sample.value) for sample in levels},
        blocks_used=round(reading.value("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used")),
        blocks=blocks,
    )


def load(before: Reading, after: Reading) -> Load:
    """Compute the load between two readings. Raises KeyError if a metric is missing."""
    seconds = after.seconds - before.seconds
    comparable = _of_the_same_servers(before, after)

    def gain(name: str, **labels: str) -> float:
        after.value(name, **labels)
        return _gain(comparable, name, **labels)

    def rate_if_any(name: str) -> float | None:
        return gain(name) / seconds if after.has(name) else None

    def latency(name: str) -> Latency:
        counts = gained(*(reading.series(f"{name}_bucket") for reading in comparable))
        return Latency(*(quantile(share, counts) for share in (0.5, 0.95, 0.99)))

    def share(part: str, whole: str) -> float | None:
        of = gain(whole)
        return gain(part) / of if of else None

    steps, prefill = gain("inflight:step_duration_seconds_count"), gain(_COMPUTED, kind="prefill")
    return Load(
        **asdict(occupancy(after)),
        preemptions=round(after.value("inflight:num_preemptions_total")),
        prompt_tokens_per_second=gain("inflight:prompt_tokens_total") / seconds,
        generated_tokens_per_second=gain("inflight:generation_tokens_total") / seconds,
        finished_per_second=gain("inflight:request_success_total") / seconds,
        refused_per_second=gain("inflight:request_refused_total") / seconds,
        prefix_hit_rate=share("inflight:prefix_cache_hits_total", "inflight:prefix_cache_queries_total"),
        drafted_tokens_per_second=rate_if_any(_DRAFTED),
        acceptance_rate=share(_ACCEPTED, _DRAFTED) if after.has(_DRAFTED) else None,
        step_fill=share(_COMPUTED, "inflight:step_budget_tokens_total"),
        prefill_tokens_per_step=prefill / steps if steps else None,
        decode_tokens_per_step=(gain(_COMPUTED) - prefill) / steps if steps else None,
        first_token=latency("inflight:time_to_first_token_seconds"),
        inter_token=latency("inflight:inter_token_latency_seconds"),
        queue=latency("inflight:request_queue_time_seconds"),
    )


def turnover(before: Reading, after: Reading) -> Turnover:
    """Count the requests that joined and left the batch between two readings. Raises KeyError if a metric is missing.

    A request that joined and left between them is in both numbers.
    """
    comparable = _of_the_same_servers(before, after)
    left = sum(_gain(comparable, name) for name in ("inflight:request_success_total", "inflight:num_preemptions_total"))
    was, is_now = (sum(sample.value for sample in reading.series(_RUNNING)) for reading in comparable)
    return Turnover(round(after.value(_RUNNING)), max(0, round(is_now - was + left)), round(left))


def _gain(readings: tuple[Reading, Reading], name: str, **labels: str) -> float:
    """Return what a counter gained between two readings of the same servers."""
    before, after = readings
    return total_gain(before.series(name, **labels), after.series(name, **labels))


def _of_the_same_servers(before: Reading, after: Reading) -> tuple[Reading, Reading]:
    """Return the readings without the servers that only one has. Otherwise, all that a server ever did would count as
    gained when it answers again."""
    both = before.servers & after.servers
    return before.of(both), after.of(both)
