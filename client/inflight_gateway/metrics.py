"""The gateway's own metrics. Those of the model come from Triton, see `model_metrics`."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight_client import AsyncClient, Usage

OUTCOME = "inflight_outcome"
"""The entry of a request's scope that holds its final status, if it differs from the one that was sent."""

_FIRST_TOKEN_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_DURATION_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_SCORING = ("/classify", "/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank")
_PATHS = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        *_SCORING,
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
        "/server_info",
        "/v1/loads",
        "/ui",
        "/ui/events",
    }
)
_ANSWERED = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"),
    *_SCORING,
)
"""The endpoints that the model answers."""
_FAILURES = (429, 500, 503, 504)
_ONE_MODEL = "/v1/models/"
OTHER = "other"
"""The label of paths that there are not."""


class Metrics:
    """All metrics of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "inflight_gateway_requests",
            "Requests that ended. The status of a stream is that of its end; 499 if the client disconnected before.",
            ["endpoint", "status"],
            registry=self.registry,
        )
        # Otherwise the first failure would be no rise of a counter, but a new one, and `rate` would not see it.
        for endpoint in _ANSWERED:
            for status in _FAILURES:
                self.requests.labels(endpoint, status)
        self.in_flight = Gauge(
            "inflight_gateway_requests_in_flight", "Requests being answered now.", ["endpoint"], registry=self.registry
        )
        self.duration = Histogram(
            "inflight_gateway_request_duration_seconds",
            "Time from a request's headers to the end of its answer.",
            ["endpoint"],
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        self.first_token = Histogram(
            "inflight_gateway_time_to_first_token_seconds",
            "Time from sending a streamed request to the model to its first token.",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self.model_metrics_up = Gauge(
            "inflight_gateway_model_metrics_up",
            "Whether this page has the metrics of Triton and the model: 1, or 0 if they could not be read.",
            registry=self.registry,
        )
        # Only with several servers. The label is that of the samples which are merged into this page.
        self.server_metrics_up = Gauge(
            "inflight_gateway_server_metrics_up",
            "Whether this page has the metrics of one of several servers: 1, or 0 if they could not be read.",
            ["server"],
            registry=self.registry,
        )
        self.tokens = Counter(
            "inflight_gateway_tokens", "Tokens of finished answers.", ["kind"], registry=self.registry
        )

    def count_prefills(self, client: AsyncClient) -> None:
        """Show what came of the prompts that went to servers for prompts, if there are any."""
        if client.prefills is not None:
            self.registry.register(_Prefills(client))

    def count_tokens(self, usage: Usage) -> None:
        """Add the tokens of a finished answer."""
        self.tokens.labels("prompt").inc(usage.prompt_tokens)
        self.tokens.labels("completion").inc(usage.completion_tokens)

    def count_prompt_tokens(self, count: int) -> None:
        """Add the tokens of prompts that were embedded or classified."""
        self.tokens.labels("prompt").inc(count)


class _Prefills(Collector):
    """The counters of a client."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See prometheus_client."""
        family = CounterMetricFamily(
            "inflight_gateway_prefills",
            "Prompts for a prefill server, by what came of it: offered, not_offered (it had no room to keep "
            "them), failed, or skipped (it has not answered before). All but the first are computed by the server that "
            "answers.",
            labels=["outcome"],
        )
        for outcome, count in (self._client.prefills or {}).items():
            family.add_metric([outcome], count)
        yield family


def endpoint_of(path: str) -> str:
    """Return the label of a path. The number of labels is bounded, for any paths that clients request."""
    if path in _PATHS:
        return path
    return "/v1/models/{model}" if path.startswith(_ONE_MODEL) else OTHER


class Measure:
    """Counts and times all requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        endpoint = endpoint_of(scope["path"])
        status = 500  # In case of an exception.
        begun = time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        in_flight = self._metrics.in_flight.labels(endpoint)
        in_flight.inc()
        try:
            await self._app(scope, receive, noted)
        finally:
            in_flight.dec()
            self._metrics.requests.labels(endpoint, scope.get(OUTCOME, status)).inc()
            self._metrics.duration.labels(endpoint).observe(time.perf_counter() - begun)
