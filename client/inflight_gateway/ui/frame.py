"""What the page shows of one observation."""

from collections.abc import Mapping
from typing import Any

from inflight_client import UnfinishedRequest
from inflight_gateway.ui.history import Point, columns
from inflight_gateway.ui.observer import MAX_LISTED, Observation


def frame(observation: Observation, points: list[Point], tenant: str | None) -> Mapping[str, Any]:
    """Return the content of an event.

    Args:
        observation: the newest one.
        points: those that the viewer does not have yet.
        tenant: whose requests the viewer may see; None for everybody's. Of the others it learns how many there are.
    """
    now = observation.now
    own, others = [], {"running": 0, "waiting": 0}
    for request in observation.requests:
        if tenant is None or request.tenant == tenant:
            own.append(request)
        else:
            others["running" if request.running else "waiting"] += 1
    return {
        "max_num_seqs": observation.max_num_seqs,
        "running": now.running,
        "waiting": now.waiting,
        "waiting_at_level": dict(now.waiting_at_level),
        "kv_cache_usage": round(now.blocks_used / now.blocks, 4),
        "requests": [_row(request) for request in own],
        "others": others,
        "is_cut": len(observation.requests) >= MAX_LISTED,
        "points": columns(points),
    }


def _row(request: UnfinishedRequest) -> Mapping[str, Any]:
    return {
        "name": request.request_id,
        "tenant": request.tenant,
        "running": request.running,
        "priority": request.priority,
        "seconds": request.seconds,
        "prompt_tokens": request.prompt_tokens,
        "computed_prompt_tokens": request.computed_prompt_tokens,
        "output_tokens": request.output_tokens,
    }
