"""What the server's own Prometheus metrics say of it while it is loaded."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from inflight_client import AsyncClient, MetricsSnapshot

# The model brings its metrics up to date that often.
PERIOD_SECONDS = 0.5
_STEP_TOKENS_BUCKET = "inflight:iteration_tokens_total_bucket"


@dataclass(frozen=True, slots=True)
class ServerSample:
    """The engine's gauges and counters at a moment; counters count from the loading of the model."""

    at: float
    """Seconds from the start of the run."""
    running: float
    """Requests in the running set."""
    waiting: float
    cache_usage: float
    """Share of the KV cache's blocks that running requests hold, 0 to 1."""
    prefill_tokens: float
    decode_tokens: float
    generated_tokens: float
    """Those of outputs, each request's first, which its prefill gives, among them."""
    budget_tokens: float
    """What the steps could have computed."""
    padding_tokens: float
    """What a padded batch would have computed besides; 0 for the strategy `continuous`."""
    steps: float
    step_requests: float
    """Requests in a step, summed over the steps."""
    preemptions: float
    step_tokens: Mapping[float, float]
    """How many steps computed at most so many tokens, by the bounds of the histogram."""

    @property
    def computed_tokens(self) -> float:
        """Tokens that went through the model."""
        return self.prefill_tokens + self.decode_tokens


def has_engine_metrics(metrics: MetricsSnapshot, model: str) -> bool:
    """Whether a server is one of ours; others have metrics of their own."""
    return any(metrics.select("inflight:num_requests_running", model=model))


def server_sample(metrics: MetricsSnapshot, model: str, at: float) -> ServerSample:
    """Read a sample. Raises KeyError where the server is none of ours."""

    def value(name: str, **labels: str) -> float:
        return metrics.value(f"inflight:{name}", model=model, **labels)

    buckets = metrics.select(_STEP_TOKENS_BUCKET, model=model)
    return ServerSample(
        at=at,
        running=value("num_requests_running"),
        waiting=value("num_requests_waiting"),
        cache_usage=value("kv_cache_usage_perc"),
        prefill_tokens=value("computed_tokens_total", kind="prefill"),
        decode_tokens=value("computed_tokens_total", kind="decode"),
        generated_tokens=value("generation_tokens_total"),
        budget_tokens=value("step_budget_tokens_total"),
        padding_tokens=value("padding_tokens_total"),
        steps=value("step_duration_seconds_count"),
        step_requests=value("iteration_requests_sum"),
        preemptions=value("num_preemptions_total"),
        step_tokens={float(bucket.labels["le"]): bucket.value for bucket in buckets},
    )


@contextlib.asynccontextmanager
async def sampled(client: AsyncClient, model: str) -> AsyncIterator[list[ServerSample]]:
    """A list that grows by a sample twice a second until the exit, and once more then.

    Raises TransportError where the metrics cannot be read.
    """
    samples: list[ServerSample] = []
    begun = time.perf_counter()

    async def take() -> None:
        metrics = await client.metrics()
        samples.append(server_sample(metrics, model, time.perf_counter() - begun))

    async def keep_taking() -> None:
        while True:
            await take()
            await asyncio.sleep(PERIOD_SECONDS)

    task = asyncio.create_task(keep_taking())
    try:
        yield samples
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    await take()


@dataclass(frozen=True)
class ServerUse:
    """How a server was used from the first of some samples to the last; shares are from 0 to 1."""

    throughput: float
    """Output tokens per second."""
    batch_size: float
    """Requests in a step, on average."""
    batch_utilisation: float
    """Computed tokens over the steps' token budgets."""
    batch_efficiency: float
    """Computed tokens over those and the padding that the batching strategy would compute besides. For a static batch
    of equal prompts that is close to generated / (batch size * longest output); where nothing is padded it is 1."""
    prefill_to_decode: float
    """Prompt tokens computed for each decoded token."""
    max_running: float
    max_waiting: float
    mean_waiting: float
    cache_usage: float
    """Of the KV cache, at the highest."""
    preemptions: float
    largest_step_tokens: float
    """The smallest bound of the engine's histogram that no step exceeded."""


def server_use(samples: Sequence[ServerSample]) -> ServerUse | None:
    """What some samples say; None where between the first and the last nothing was computed, or there are none.

    A server that is asked while it brings its metrics up to date shows some of half a second ago, so that shares of
    short times are rough.
    """
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    steps, budget = last.steps - first.steps, last.budget_tokens - first.budget_tokens
    prefill, decode = last.prefill_tokens - first.prefill_tokens, last.decode_tokens - first.decode_tokens
    if min(steps, budget, prefill + decode) <= 0:
        return None
    waiting = [sample.waiting for sample in samples]
    return ServerUse(
        throughput=(last.generated_tokens - first.generated_tokens) / (last.at - first.at),
        batch_size=(last.step_requests - first.step_requests) / steps,
        batch_utilisation=(prefill + decode) / budget,
        batch_efficiency=(prefill + decode) / (prefill + decode + last.padding_tokens - first.padding_tokens),
        prefill_to_decode=prefill / decode if decode else float("inf"),
        max_running=max(sample.running for sample in samples),
        max_waiting=max(waiting),
        mean_waiting=sum(waiting) / len(waiting),
        cache_usage=max(sample.cache_usage for sample in samples),
        preemptions=last.preemptions - first.preemptions,
        largest_step_tokens=_bound_of_all(first.step_tokens, last.step_tokens),
    )


def _bound_of_all(before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """The smallest bound under which all lies that a histogram grew by."""
    grown = {bound: after[bound] - before[bound] for bound in after}
    return min(bound for bound, count in grown.items() if count >= grown[float("inf")])
