"""What routers ask for: GET /v1/loads and GET /server_info, in SGLang's form."""

import time
from collections.abc import Sequence
from importlib.metadata import version

from fastapi import APIRouter

from inflight_client import TransportError
from inflight_client.metrics import MetricsSnapshot
from inflight_gateway.errors import ApiError
from inflight_gateway.responses import Load, Loads, ServerInfo
from inflight_gateway.service import Service, TheService

router = APIRouter()
loads_router = APIRouter()

_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"


@loads_router.get("/v1/loads")
async def read_loads(service: TheService) -> Loads:
    """How busy the model is, on each server that has it. A server's rank is its place among all."""
    try:
        snapshots = await service.model_metrics.snapshots()
    except TransportError as error:
        raise ApiError(503, "no_metrics", "Triton's metrics cannot be read; see the option --metrics-url") from error
    loads, missing = [], KeyError("none")
    for rank, metrics in enumerate(snapshots):
        if metrics is None:
            continue
        try:
            loads.append(_load(service, rank, metrics))
        except KeyError as error:  # The model is being loaded there.
            missing = error
    if not loads:
        raise ApiError(404, "no_metrics", f"the model has no such metrics: {missing.args[0]}") from missing
    return {
        "timestamp": time.time(),
        "version": version("inflight-client"),
        "dp_rank_count": len(service.model_metrics),
        "loads": loads,
        "aggregate": _sum(loads),
    }


@router.get("/server_info")
async def read_server_info(service: TheService) -> ServerInfo:
    """What the server is, in a few words."""
    return {
        "served_model_name": service.model_name,
        "model_path": service.model_name,
        "tokenizer_path": service.model_name,
        "tp_size": 1,
        "dp_size": 1,
        "version": version("inflight-client"),
    }


def _load(service: Service, rank: int, metrics: MetricsSnapshot) -> Load:
    def value(name: str, **labels: str) -> float:
        return metrics.value(name, model=service.triton_model_name, **labels)

    def mean(name: str, **labels: str) -> float:
        return metrics.mean(name, model=service.triton_model_name, **labels)

    tokens_per_block = mean(_BLOCKS, kv_cache_block_type="tokens_per")
    return {
        "dp_rank": rank,
        "num_running_reqs": round(value("inflight:num_requests_running")),
        "num_waiting_reqs": round(value("inflight:num_requests_waiting")),
        "num_used_tokens": round(tokens_per_block * value(_BLOCKS, kv_cache_block_type="used")),
        "max_total_num_tokens": round(tokens_per_block * value(_BLOCKS, kv_cache_block_type="max")),
        "token_usage": mean("inflight:kv_cache_usage_perc"),
    }


def _sum(loads: Sequence[Load]) -> Load:
    """The load of all servers together."""
    return {
        "dp_rank": 0,
        "num_running_reqs": sum(load["num_running_reqs"] for load in loads),
        "num_waiting_reqs": sum(load["num_waiting_reqs"] for load in loads),
        "num_used_tokens": sum(load["num_used_tokens"] for load in loads),
        "max_total_num_tokens": sum(load["max_total_num_tokens"] for load in loads),
        "token_usage": sum(load["token_usage"] for load in loads) / len(loads),
    }
