"""TensorRT-LLM's outputs about the work on a request, which `return_perf_metrics` asks for."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from inflight.request import Request


def _acceptance_rate(request: Request) -> float:
    return request.num_accepted / max(1, request.num_drafted)


def _nanoseconds(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * 1e9)


_OUTPUTS: dict[str, tuple[Any, Callable[[Request], float]]] = {
    "acceptance_rate": (np.float32, _acceptance_rate),
    "total_accepted_draft_tokens": (np.int32, lambda request: request.num_accepted),
    "total_draft_tokens": (np.int32, lambda request: request.num_drafted),
    "arrival_time_ns": (np.int64, lambda request: _nanoseconds(request.arrival)),
    "first_scheduled_time_ns": (np.int64, lambda request: _nanoseconds(request.first_step_at)),
    "first_token_time_ns": (np.int64, lambda request: _nanoseconds(request.first_token_at)),
    "last_token_time_ns": (np.int64, lambda request: _nanoseconds(request.last_token_at)),
}


def block_counts(requests: Sequence[Request], block_size: int) -> dict[str, Any]:
    """Return the outputs about blocks that only TensorRT-LLM's own formats have, as `perf_metrics` does.

    All blocks are those that a request needed at its end. New are those that were not in the prefix cache.
    """
    # The last token of an output is not computed.
    computed = [len(request.token_ids) - (request.num_output > 0) for request in requests]
    total = np.array([-(-count // block_size) for count in computed], np.int32)
    reused = np.array([request.num_cached // block_size for request in requests], np.int32)
    return {"kv_cache_alloc_total_blocks": total, "kv_cache_alloc_new_blocks": total - reused}


def perf_metrics(requests: Sequence[Request], block_size: int) -> dict[str, Any]:
    """Return the outputs by name, each as an array with an element for each of the requests, which have ended."""
    reused = [request.num_cached // block_size for request in requests]
    found = {
        name: np.array([value(request) for request in requests], dtype) for name, (dtype, value) in _OUTPUTS.items()
    }
    return {**found, "kv_cache_reused_blocks": np.array(reused, np.int32)}
