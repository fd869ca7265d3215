"""The application: its endpoints, its middleware and its error handlers."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from inflight_client import AsyncClient, InflightError, RetryPolicy, Timeouts
from inflight_gateway import chat, completions, embeddings, errors, health, models, router_info, scoring, tokenize
from inflight_gateway.disconnect import CancelOnDisconnect
from inflight_gateway.health_check import HealthCheck
from inflight_gateway.keys import RequireKey
from inflight_gateway.limits import BodyLimit, ConcurrencyLimit
from inflight_gateway.messages_api import endpoint as messages_api
from inflight_gateway.messages_api.error_form import ErrorForm
from inflight_gateway.metrics import Measure, Metrics
from inflight_gateway.model_metrics import ModelMetrics
from inflight_gateway.request_ids import RequestIds
from inflight_gateway.responses import Error
from inflight_gateway.responses_api import endpoint as responses_api
from inflight_gateway.served_model import ServedModel
from inflight_gateway.service import Service
from inflight_gateway.settings import Settings
from inflight_gateway.tracing import Tracing
from inflight_gateway.ui import events, page
from inflight_gateway.ui.observer import Observer

_REASONS: dict[int | str, str] = {
    400: "A field of the request is invalid or not supported; `param` names it",
    401: "The API key is missing or wrong",
    404: "There is no such model",
    408: "The body took too long to arrive",
    413: "The body is too large",
    429: "Too many requests; try again after the number of seconds in Retry-After",
    500: "The gateway or the server failed",
    503: "The model is not ready, or the server is unreachable",
    504: "The answer took too long",
    # This entry also keeps FastAPI from documenting its own error format.
    "4XX": "Any other error in the request",
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": reason} for status, reason in _REASONS.items()
}


def create_app(settings: Settings) -> FastAPI:
    """Create the gateway of one model. It connects when the application starts. Raises what `Tracing` raises."""
    metrics = Metrics()
    tracing = Tracing(settings.otlp_traces_endpoint)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with _connected(settings, metrics) as app.state.service:
            yield
        await asyncio.to_thread(tracing.close)

    app = FastAPI(
        title="Inflight gateway",
        description="OpenAI's and Anthropic's APIs for a model on an Inflight server.",
        lifespan=lifespan,
        redirect_slashes=False,
        responses=_ERRORS,
        telemetry=tracing.config,
    )
    app.state.viewers = events.Viewers()
    _add_routers(app, settings)
    _add_middleware(app, settings, metrics)
    app.add_exception_handler(InflightError, errors.answer_inflight_error)
    app.add_exception_handler(RequestValidationError, errors.answer_invalid_body)
    app.add_exception_handler(HTTPException, errors.answer_http_error)
    app.add_exception_handler(Exception, errors.answer_fault)
    return app


@asynccontextmanager
async def _connected(settings: Settings, metrics: Metrics) -> AsyncGenerator[Service, None]:
    """Connect to the server, and close the connections at the end."""
    seconds = settings.request_timeout
    async with (
        AsyncClient(
            settings.server,
            model=settings.model,
            timeouts=Timeouts(first_token=seconds, total=seconds),
            balance=settings.balance,
            prefill=settings.prefill,
            # No retries here: the gateway's clients decide whether and when to try again.
            retry=RetryPolicy(attempts=1),
        ) as client,
        ModelMetrics(settings.metrics_urls) as model_metrics,
    ):
        metrics.count_prefills(client)
        model = ServedModel(client, settings.tool_format, settings.reasoning_format)
        async with model.watched():
            yield Service(
                client=client,
                model_name=settings.served_model_name,
                created=int(time.time()),
                triton_model_name=settings.model,
                metrics=metrics,
                model_metrics=model_metrics,
                health=HealthCheck(client),
                model=model,
                observer=Observer(client, model_metrics, settings.model),
            )


def _add_routers(app: FastAPI, settings: Settings) -> None:
    # Only for the OpenAPI page. `RequireKey` checks the keys, before a body is read.
    key = [] if settings.keys is None else [Depends(HTTPBearer(auto_error=False))]
    app.include_router(completions.router, dependencies=key)
    app.include_router(chat.router, dependencies=key)
    app.include_router(embeddings.router, dependencies=key)
    app.include_router(scoring.router, dependencies=key)
    app.include_router(responses_api.router, dependencies=key)
    app.include_router(messages_api.router, dependencies=key)
    app.include_router(tokenize.router, dependencies=key)
    app.include_router(models.router, dependencies=key)
    app.include_router(router_info.loads_router, dependencies=key)
    app.include_router(router_info.router)
    app.include_router(health.router)
    app.include_router(events.router)
    app.include_router(page.router)


def _add_middleware(app: FastAPI, settings: Settings, metrics: Metrics) -> None:
    """A request passes through the middleware in reverse order: the last one added comes first."""
    app.add_middleware(CancelOnDisconnect, request_timeout=settings.request_timeout)
    app.add_middleware(
        BodyLimit,
        limit=settings.max_body_bytes,
        total_limit=settings.max_total_body_bytes,
        request_timeout=settings.request_timeout,
    )
    app.add_middleware(
        ConcurrencyLimit, limit=settings.max_concurrent_requests, max_samples=settings.max_concurrent_samples
    )
    if settings.keys is not None:
        app.add_middleware(RequireKey, ring=settings.keys)
    if settings.allowed_origins:
        # Before the check of keys: browsers ask without one whether a page may send a request.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    app.add_middleware(ErrorForm)
    app.add_middleware(RequestIds)
    app.add_middleware(Measure, metrics=metrics)
