"""What users notice when a server of a fleet is killed, or all are restarted one after the other."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from inflight_client import Client, RetryPolicy
from load_tests.endpoints import Endpoint, Prompt
from load_tests.failures import RequestFailed
from load_tests.fleet.routing import Way
from load_tests.generator import closed_loop
from load_tests.prompts import PlannedRequest
from load_tests.records import Run
from load_tests.workload import WORKLOADS, read_workload
from scripts.fleet.fleet import Fleet

_USERS = 32
_WORKLOAD = "short.yaml"
_BEFORE_SECONDS = 5.0
_DEAD_SECONDS = 5.0
_KILL_SECONDS = 60.0
"""With the start of a server in it."""
_ROLLING_REQUESTS = 5000
_ROLLING_TOKENS = 4
"""So that so many requests take minutes."""
_DRAINED_SECONDS = 60.0

HEADER = (
    "| Way | Answered | Failed after their first token | Failed before it | Longest wait for an error (s) |\n"
    "|---|---:|---:|---:|---:|"
)


@dataclass
class Watched:
    """An endpoint that notes how long users wait for errors."""

    endpoint: Endpoint
    waits: list[float] = field(default_factory=list)
    """Seconds from the sending of a request, or from its last token, to its error."""

    @property
    def name(self) -> str:
        """See `Endpoint`."""
        return self.endpoint.name

    async def ask(self, request: PlannedRequest, prompt: Prompt) -> AsyncIterator[int]:
        """See `Endpoint`."""
        last = time.monotonic()
        try:
            async for tokens in self.endpoint.ask(request, prompt):
                yield tokens
                last = time.monotonic()
        except RequestFailed:
            self.waits.append(time.monotonic() - last)
            raise


async def kill_one(fleet: Fleet, way: Way, seed: int) -> str:
    """Kill a server under load, and start it again. Return a row of the table."""

    async def kill() -> None:
        await asyncio.sleep(_BEFORE_SECONDS)
        await asyncio.to_thread(fleet.servers[0].kill)
        await asyncio.sleep(_DEAD_SECONDS)
        await asyncio.to_thread(fleet.restart, 0)

    async with way(fleet) as endpoint:
        watched = Watched(endpoint)
        run = await _both(closed_loop(watched, _USERS, _requests(seed), seconds=_KILL_SECONDS), kill())
    return _row("killed", run, watched)


async def restart_all(fleet: Fleet, way: Way, seed: int) -> str:
    """Restart each server under load: drain, stop, start. Return a row of the table."""

    async def restart() -> None:
        for index in range(len(fleet.servers)):
            await asyncio.sleep(_BEFORE_SECONDS)
            await asyncio.to_thread(_restart, fleet, index)

    async with way(fleet) as endpoint:
        watched = Watched(endpoint)
        requests = (replace(request, output_tokens=_ROLLING_TOKENS) for request in _requests(seed))
        run = await _both(closed_loop(watched, _USERS, requests, count=_ROLLING_REQUESTS), restart())
    return _row("all restarted", run, watched)


async def _both(load: Coroutine[Any, Any, Run], outage: Coroutine[Any, Any, None]) -> Run:
    """Run the load and the outage. If the outage fails, the load ends before its client is closed."""
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(load)
        group.create_task(outage)
    return loading.result()


def _requests(seed: int) -> Iterator[PlannedRequest]:
    return read_workload(WORKLOADS / _WORKLOAD).requests(seed)


def _restart(fleet: Fleet, index: int) -> None:
    server = fleet.servers[index]
    fleet.announce(index)
    deadline = time.monotonic() + _DRAINED_SECONDS
    with Client(server.grpc_url, retry=RetryPolicy(attempts=1)) as client:
        while not client.drain(server.operator_key).is_complete and time.monotonic() < deadline:
            time.sleep(0.2)
    server.stop()
    fleet.restart(index)
    fleet.announce()


def _row(what: str, run: Run, watched: Watched) -> str:
    failed = [record for record in run.records if not record.done]
    before = [record for record in failed if record.first_token is None]
    kinds = ", ".join(sorted({record.error or "" for record in before}))
    wait = f"{max(watched.waits):.1f}" if watched.waits else ""
    counts = f"{len(run.done)} | {len(failed) - len(before)} | {len(before)} {kinds}"
    return f"| {watched.name}, {what} | {counts} | {wait} |"
