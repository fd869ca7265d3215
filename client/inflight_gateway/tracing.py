"""OpenTelemetry spans of requests: FastAPI makes them, this module adds what they say of a model, and exports them.

A request has one span. The model's spans are its children. They hold numbers and names, never text of prompts or
answers. The names of attributes are those of OpenTelemetry's conventions for generative AI.
"""

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import Scope

from inflight_client import Usage
from inflight_gateway.errors import ApiError
from inflight_gateway.limits import is_generation
from inflight_gateway.metrics import OTHER, endpoint_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# A receiver that does not answer must not hold up the end of the gateway.
_CLOSE_SECONDS = 5.0
_PROPAGATOR = TraceContextTextMapPropagator()
# It would warn of each request with an invalid `tracestate`, in the caller's words.
logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)


class Tracing:
    """Makes and exports the spans of one gateway.

    The caller decides by its `traceparent` whether a request has spans. Requests without one have them unless the
    environment variable OTEL_TRACES_SAMPLER says otherwise. The SDK's other variables work too.
    """

    def __init__(self, endpoint: str | None) -> None:
        """`endpoint`: the URL of a receiver of OTLP over HTTP; None: there are no spans.

        Raises:
            ValueError: the packages of OpenTelemetry are not installed.
        """
        self._provider = None if endpoint is None else _make_provider(endpoint)

    @property
    def config(self) -> TelemetryConfig:
        """FastAPI's settings."""
        # Its logs would hold texts of requests. The metrics are on /metrics.
        config: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
        if self._provider is not None:
            config |= {"tracing": True, "tracer_provider": self._provider}
            config |= {"operation_spans": False, "exclude": _is_excluded}
        return config

    def close(self) -> None:
        """Send what is left, for at most 5 seconds."""
        if self._provider is not None:
            ending = threading.Thread(target=self._provider.shutdown, daemon=True)
            ending.start()
            ending.join(_CLOSE_SECONDS)


def _make_provider(endpoint: str) -> "TracerProvider":
    try:  # Only here: most gateways have no use for these packages, and need not have them.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ValueError(
            f"--otlp-traces-endpoint is {endpoint}, but {error.name} is not installed; "
            "install inflight-client[gateway,tracing]"
        ) from None
    if urlsplit(endpoint).path in ("", "/"):
        endpoint = f"{endpoint.rstrip('/')}/v1/traces"
    # What the environment says of the resource goes before.
    resource = Resource.create({"service.name": "inflight-gateway"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return provider


def _is_excluded(scope: Scope) -> bool:
    """Whether a request has no span: health checks and scrapes, and paths that there are not."""
    return not is_generation(scope) or endpoint_of(scope["path"]) == OTHER


def context_for_model(scope: Scope) -> dict[str, str]:
    """Return the `traceparent` and `tracestate` for the model: of the request's span, or else those of the caller."""
    carrier: dict[str, str] = {}
    context = None
    if not trace.get_current_span().get_span_context().is_valid:
        headers = Headers(scope=scope)
        if "traceparent" not in headers:
            return carrier
        context = _PROPAGATOR.extract(headers)
    _PROPAGATOR.inject(carrier, context)
    return carrier


def note_request(operation: str, model: str, *, stream: bool = False) -> None:
    """Add what is asked to the request's span. `operation`: its name in OpenTelemetry's conventions."""
    trace.get_current_span().set_attributes(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "inflight",
            "gen_ai.request.model": model,
            "gen_ai.request.stream": stream,
        }
    )


def note_first_chunk(seconds: float) -> None:
    """Add the time to the first piece of a streamed answer to the request's span."""
    trace.get_current_span().set_attribute("gen_ai.response.time_to_first_chunk", seconds)


def note_answer(usage: Usage, finish_reasons: Sequence[str] = ()) -> None:
    """Add the whole answer's tokens and its ends to the request's span."""
    span = trace.get_current_span()
    span.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
    span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
    if finish_reasons:
        span.set_attribute("gen_ai.usage.output_tokens", usage.completion_tokens)
        span.set_attribute("gen_ai.response.finish_reasons", finish_reasons)


def note_failure(error: ApiError) -> None:
    """Mark the span of a stream that failed after its status was sent."""
    span = trace.get_current_span()
    span.set_attribute("error.type", error.code)
    span.set_status(StatusCode.ERROR)
