"""The machine that settings are chosen for, as the simulator sees it: its step times and its KV cache."""

import asyncio
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tqdm import tqdm

from inflight_client import AsyncClient
from load_tests.endpoints import grpc_endpoint
from load_tests.generator import closed_loop
from load_tests.simulate.step_cost import StepCost
from load_tests.tune.step_times import step_cost
from load_tests.workload import Workload
from scripts.launch.served_model import triton_server

_SEED = 2_000_000
# Steps of all sizes: large ones with whole prompts, and small ones with decodes alone.
_SETTINGS = {"max_num_batched_tokens": "2048", "token_budget": "fixed"}
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"


@dataclass(frozen=True)
class Machine:
    """What the simulator knows of a machine and the model on it."""

    cost: StepCost
    kv_cache_tokens: int

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def read_machine(path: Path) -> Machine:
    """Read what `Machine.write` wrote.

    Raises:
        ValueError: the file holds something else.
    """
    try:
        found: Mapping[str, Any] = json.loads(path.read_text())
        cost = {name: float(seconds) for name, seconds in found["cost"].items()}
        if not all(0 <= seconds < math.inf for seconds in cost.values()):
            raise ValueError("a step time is below 0, or not finite")
        return Machine(StepCost(**cost), int(found["kv_cache_tokens"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no file that `make tune` wrote for a machine: {error}") from error


def calibrate(model: Path, workload: Workload, users: int, seconds: float) -> Machine:
    """Fit the step times to a server under this workload, for one user, all of them and numbers in between.

    The load generator runs on the same processors as it does in a measurement, and Triton's part of a step counts.
    Raises LauncherError if the server does not start, and ValueError if there were too few steps for a fit.
    """
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch, "trace.json")
        with triton_server(model, **_SETTINGS, trace_file=str(trace)) as server:
            tokens = asyncio.run(_serve(server.grpc_url, server.metrics_url, workload, _levels(users), seconds))
        return Machine(step_cost(trace), tokens)


def _levels(users: int) -> list[int]:
    """Numbers of users from 1 on, each about four times the one before."""
    levels = [1]
    while levels[-1] < users:
        levels.append(min(4 * levels[-1], users))
    return levels


async def _serve(url: str, metrics_url: str, workload: Workload, levels: list[int], seconds: float) -> int:
    """Put the load on, with a progress bar. Return the size of the KV cache in tokens."""
    async with AsyncClient(url, model="llm", metrics_url=metrics_url) as client, grpc_endpoint(url) as endpoint:
        for level, seed in zip(tqdm(levels, desc="calibrating", unit="level"), count(_SEED), strict=False):
            await closed_loop(endpoint, level, workload.requests(seed), seconds=seconds / len(levels))
        metrics = await client.metrics()
        blocks, size = (metrics.value(_BLOCKS, model="llm", kv_cache_block_type=kind) for kind in ("max", "tokens_per"))
        return round(blocks * size)
