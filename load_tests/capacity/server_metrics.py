"""Reads the server's own Prometheus metrics while it is under load."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from inflight_client import AsyncClient, MetricsSnapshot

# The model updates its metrics at this interval.
PERIOD_SECONDS = 0.5
_STEP_TOKENS_BUCKET = "inflight:iteration_tokens_total_bucket"


@dataclass(frozen=True, slots=True)
class ServerSample:
    """The engine's gauges and counters at one moment. Counters start at 0 when the model is loaded."""

    at: float
    """Seconds from the start of the run."""
    running: float
    """Requests in the running set."""
    waiting: float
    cache_usage: float
    """Fraction of the KV cache's blocks that running requests use, 0 to 1."""
    prefill_tokens: float
    decode_tokens: float
    generated_tokens: float
    """Output tokens. The first token of a request, which its prefill yields, is included."""
    budget_tokens: float
    """Sum of the token budgets of all steps."""
    padding_tokens: float
    """Additional tokens that a padded batch would have computed. 0 for the strategy `continuous`."""
    steps: float
    step_requests: float
    """Number of requests in a step, summed over all steps."""
    preemptions: float
    step_tokens: Mapping[float, float]
    """Cumulative histogram: the number of steps with at most so many tokens, by upper bound."""

    @property
    def computed_tokens(self) -> float:
        """Tokens that went through the model."""
        return self.prefill_tokens + self.decode_tokens


def has_engine_metrics(metrics: MetricsSnapshot, model: str) -> bool:
    """Whether a server has Inflight's metrics."""
    return any(metrics.select("inflight:num_requests_running", model=model))


def server_sample(metrics: MetricsSnapshot, model: str, at: float) -> ServerSample:
    """Read a sample. Raises KeyError if the server has no Inflight metrics."""

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
    """Yield a list that grows by a sample twice a second, and by a last one at the exit.

    Raises TransportError if the metrics cannot be read.
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
    """How a server was used between the first and the last of some samples. Fractions are from 0 to 1."""

    throughput: float
    """Output tokens per second."""
    batch_size: float
    """Mean number of requests in a step."""
    batch_utilisation: float
    """Computed tokens over the token budgets of all steps."""
    batch_efficiency: float
    """Computed tokens over the sum of computed tokens and padding that the batching strategy would add. For a static
    batch of equal prompts it is close to generated / (batch size * longest output). Without padding it is 1."""
    prefill_to_decode: float
    """Computed prompt tokens for each decoded token."""
    max_running: float
    max_waiting: float
    mean_waiting: float
    cache_usage: float
    """Highest usage of the KV cache."""
    preemptions: float
    largest_step_tokens: float
    """Smallest bound of the engine's histogram that no step exceeded."""


def server_use(samples: Sequence[ServerSample]) -> ServerUse | None:
    """Summarise some samples.

    Return None if there are no samples, or nothing was computed between the first and the last. The server updates its
    metrics every half second, so a sample may be that old. Fractions over short intervals are therefore inexact.
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
    """The smallest bucket bound that covers everything the histogram gained."""
    grown = {bound: after[bound] - before[bound] for bound in after}
    return min(bound for bound, count in grown.items() if count >= grown[float("inf")])
