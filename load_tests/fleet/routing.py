"""How much prefix affinity brings: tokens per second and hits in the prefix caches, by the way of routing."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import httpx

from inflight_client.fleet.balance import BALANCES
from inflight_client.metrics import parse_metrics
from load_tests.endpoints import Endpoint
from load_tests.fleet.ways import client_way, openai_way
from load_tests.generator import closed_loop
from load_tests.workload import WORKLOADS, read_workload
from scripts.fleet.fleet import Fleet
from scripts.launch.errors import LauncherError
from scripts.launch.triton_server import TritonServer

USERS = 48
LOADS = {"chats of eight turns": "fleet_chats.yaml", "prompts that share nothing": "short.yaml"}
_DRAIN_SECONDS = 60.0

Way = Callable[[Fleet], AbstractAsyncContextManager[Endpoint]]
WAYS: dict[str, Way] = {
    **{f"client, {balance}": partial(client_way, balance=balance) for balance in BALANCES},
    "smg, cache_aware, before the gateways": openai_way,
}
"""To a fleet behind smg. Our client goes to the servers themselves."""


@dataclass
class Seen:
    """What a way brought in its turns."""

    rates: list[float] = field(default_factory=list)
    """Tokens per second."""
    hits: float = 0.0
    queries: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second, the median of the turns."""
        return median(self.rates)

    @property
    def hit_rate(self) -> float:
        """Prompt tokens found in a prefix cache, of all."""
        return self.hits / max(1.0, self.queries)


async def run_turn(fleet: Fleet, way: Way, workload: str, seconds: float, seed: int, seen: Seen) -> None:
    """Let users chat for some seconds. Raises LauncherError if a request fails."""
    before = _prefix_cache(fleet.servers)
    async with way(fleet) as endpoint:
        requests = read_workload(WORKLOADS / workload).requests(seed)
        run = await closed_loop(endpoint, USERS, requests, seconds=seconds, drain=_DRAIN_SECONDS)
    if errors := run.errors():
        raise LauncherError(f"{endpoint.name}: requests failed: {errors}")
    await asyncio.sleep(1)  # The counters are updated twice a second.
    after = _prefix_cache(fleet.servers)
    seen.rates.append(run.throughput)
    seen.hits += after[0] - before[0]
    seen.queries += after[1] - before[1]


def table(seen: dict[str, Seen], reference: str) -> str:
    """Return a Markdown table of the ways, with ratios to one of them."""
    base = seen[reference]
    lines = [f"| Way | Tokens/s | To {reference} | Hit rate | To {reference} |", "|---|---:|---:|---:|---:|"]
    for name, each in seen.items():
        hits = f"{each.hit_rate:.2f} | {each.hit_rate / base.hit_rate:.2f}" if base.hits else "| "
        lines.append(f"| {name} | {each.rate:.0f} | {each.rate / base.rate:.2f} | {hits} |")
    return "\n".join(lines)


def _prefix_cache(servers: Sequence[TritonServer]) -> tuple[float, float]:
    """The hits and the queries of all servers so far, in tokens."""
    found = [parse_metrics(httpx.get(server.metrics_url, trust_env=False).text) for server in servers]
    hits, queries = (
        sum(metrics.value(f"inflight:prefix_cache_{what}_total", model="llm") for metrics in found)
        for what in ("hits", "queries")
    )
    return hits, queries
