"""Endpoints for operators: GET /health and GET /metrics."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from inflight_gateway.errors import ApiError
from inflight_gateway.responses import Health
from inflight_gateway.service import TheService

router = APIRouter()


@router.get("/health")
async def check_health(service: TheService) -> Health:
    """Whether the model serves requests: its process answers, and its engine runs."""
    if not await service.health.is_serving():
        raise ApiError(503, "server_not_ready", "the model does not serve requests, or the server is unreachable")
    return {"status": "ready"}


@router.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE_LATEST: {}}}})
async def read_metrics(service: TheService) -> Response:
    """The gateway's own metrics in Prometheus's text format."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)
