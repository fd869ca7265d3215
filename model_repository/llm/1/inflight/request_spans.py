"""OpenTelemetry spans of finished requests, exported by OTLP over HTTP.

The spans are made when a request has ended, from the times that it keeps, so that steps cost no more than without them.
The SDK's own thread sends them. Where the receiver does not keep up, spans are dropped: no request waits for them.

Spans hold numbers and names, never text of prompts or answers. The names of attributes are those of OpenTelemetry's
conventions for generative AI where these have one, otherwise those of vLLM (`gen_ai.latency.*`), otherwise our own
(`inflight.*`).
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_TRACES_SAMPLER
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from inflight.outputs import Delta
from inflight.phases import phases
from inflight.request import ERROR, EXPIRED, INVALID, SHED, Request

# Far more than end between two calls of `flush`.
_MAX_FINISHED = 10_000
# A receiver that does not answer must not hold up the end of the server.
_CLOSE_SECONDS = 5.0
_FAILED = (ERROR, EXPIRED, INVALID, SHED)
_PROPAGATOR = TraceContextTextMapPropagator()
# It would warn of each request with an invalid `tracestate`, in the client's words.
logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)


class _Finished(NamedTuple):
    """A request that has ended."""

    request: Request
    reason: str
    num_output: int
    ended: float
    """Seconds on the clock of `Request.arrival`."""


class RequestSpans:
    """Makes the spans of one engine. One thread calls `add`, and one other thread calls `flush` and `close`.

    The caller of a request decides whether it has spans, by the flag in its `traceparent`. Without one, there are none,
    unless the environment variable OTEL_TRACES_SAMPLER says otherwise. The SDK's other variables work too.
    """

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: the receiver's URL. The path /v1/traces is added if it has none."""
        if urlsplit(endpoint).path in ("", "/"):
            endpoint = f"{endpoint.rstrip('/')}/v1/traces"
        self._finished: deque[_Finished] = deque(maxlen=_MAX_FINISHED)
        self._provider = TracerProvider(
            sampler=None if OTEL_TRACES_SAMPLER in os.environ else ParentBased(ALWAYS_OFF),
            # What the environment says goes before.
            resource=Resource.create({"service.name": "inflight"}).merge(OTELResourceDetector().detect()),
        )
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("inflight")

    def add(self, deltas: Iterable[Delta]) -> None:
        """Note the requests that end with these deltas."""
        for delta in deltas:
            if delta.finish_reason is not None:
                finished = _Finished(delta.request, delta.finish_reason, delta.num_output, time.monotonic())
                self._finished.append(finished)

    def flush(self) -> None:
        """Make the spans of the requests that ended since the last call, and give them to the exporter's queue."""
        # What the clock of the requests showed in 1970. All times of a request must be converted alike.
        epoch = time.monotonic_ns() - time.time_ns()
        while self._finished:
            self._make(self._finished.popleft(), epoch)

    def close(self) -> None:
        """Send the spans that have been made, for at most 5 seconds."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)
        if ending.is_alive():
            self._exporter.shutdown()  # Otherwise its thread would try the other batches, each for 10 s.

    def _make(self, finished: _Finished, epoch: int) -> None:
        def unix_time(at: float) -> int:
            return round(at * 1e9) - epoch

        request, ended = finished.request, finished.ended
        parent = _PROPAGATOR.extract(request.options.trace_context or {})
        span = self._tracer.start_span("llm_request", parent, SpanKind.SERVER, start_time=unix_time(request.arrival))
        if span.is_recording():
            span.set_attributes(_attributes(finished))
            if request.first_token_at is not None:
                span.add_event("first token", timestamp=unix_time(request.first_token_at))
            if finished.reason in _FAILED:
                span.set_attribute("error.type", finished.reason)
                span.set_status(StatusCode.ERROR)
            within = trace.set_span_in_context(span)
            for phase in phases(request, ended):
                part = self._tracer.start_span(phase.name, within, start_time=unix_time(phase.start))
                part.end(unix_time(phase.end))
        span.end(unix_time(ended))


def _attributes(finished: _Finished) -> dict[str, str | int | float | list[str]]:
    request, ended = finished.request, finished.ended
    found: dict[str, str | int | float | list[str]] = {
        "gen_ai.operation.name": "text_completion" if request.pooling is None else "embeddings",
        "gen_ai.provider.name": "inflight",
        "gen_ai.request.id": request.options.client_request_id or request.request_id,
        "gen_ai.response.finish_reasons": [finished.reason],
        "gen_ai.usage.input_tokens": len(request.prompt_ids),
        "gen_ai.usage.cache_read.input_tokens": request.num_cached,
        "gen_ai.usage.output_tokens": finished.num_output,
        "gen_ai.latency.e2e": ended - request.arrival,
        "inflight.drafted_tokens": request.num_drafted,
        "inflight.accepted_tokens": request.num_accepted,
        "inflight.preemptions": request.num_preemptions,
        "inflight.priority": request.priority,
    }
    if request.pooling is None:
        found["gen_ai.request.max_tokens"] = request.max_tokens
    if request.first_step_at is not None:
        found["gen_ai.latency.time_in_queue"] = request.first_step_at - request.arrival
    if request.first_token_at is not None:
        found["gen_ai.latency.time_to_first_token"] = request.first_token_at - request.arrival
    return found
