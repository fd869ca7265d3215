"""Endpoints for operators: GET /health and GET /metrics."""

from fastapi import APIRouter
from prometheus_client import generate_latest
from starlette.responses import Response

from inflight_client import TransportError
from inflight_gateway.errors import ApiError, api_error
from inflight_gateway.responses import Health
from inflight_gateway.service import TheService

router = APIRouter()

# Triton's metrics are in this version of the format, which everything that reads metrics understands.
_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


# Load balancers also ask with HEAD.
@router.head("/health", include_in_schema=False)
@router.get("/health")
async def check_health(service: TheService) -> Health:
    """Whether the model serves requests: its process answers, and its engine runs."""
    if (error := await service.health.error()) is not None:
        raise ApiError(503, "server_not_ready", api_error(error).detail)
    return {"status": "ready"}


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=Response, responses={200: {"content": {_TEXT_FORMAT: {}}}})
async def read_metrics(service: TheService) -> Response:
    """The gateway's own metrics and those of Triton and the model, in Prometheus's text format."""
    try:
        of_model = await service.model_metrics.text()
    except TransportError:
        of_model = ""
    service.metrics.model_metrics_up.set(bool(of_model))
    if len(service.model_metrics) > 1:
        for server, is_readable in service.model_metrics.readable().items():
            service.metrics.server_metrics_up.labels(server).set(is_readable)
    return Response(generate_latest(service.metrics.registry).decode() + of_model, media_type=_TEXT_FORMAT)
