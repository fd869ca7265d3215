"""Runs servers alternately under one workload."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tqdm import tqdm

from load_tests.compare.contenders import Connect, Contender
from load_tests.generator import closed_loop
from load_tests.records import Run
from load_tests.workload import Workload
from scripts.launch.server_process import ServerProcess

WARM_UP_REQUESTS = 8
_WARM_UP_SEED = 1_000_000


@dataclass
class Compared:
    """All rounds of one server."""

    runs: list[Run] = field(default_factory=list)
    ready_seconds: float = 0.0
    """Time from its start until it was ready."""
    resident_bytes: int = 0
    """Its memory after the last round."""

    def of(self, measure: Callable[[Run], float]) -> list[float]:
        """The value of a measure in each round."""
        return [measure(run) for run in self.runs]


def compare(
    contenders: Sequence[Contender], workload: Workload, *, users: int, rounds: int, seconds: float
) -> dict[str, Compared]:
    """Start all servers, run them alternately with a progress bar, and return the records of each.

    A server is paused (SIGSTOP) while another one runs.
    """
    results = {contender.name: Compared() for contender in contenders}
    running: list[tuple[str, ServerProcess, Connect]] = []
    with ExitStack() as stack, tqdm(total=len(contenders) * (rounds + 1), unit="run") as bar:
        for contender in contenders:
            bar.set_description_str(f"{users} users: starting {contender.name}")
            started = time.perf_counter()
            server, connect = stack.enter_context(contender.start(users))
            results[contender.name].ready_seconds = time.perf_counter() - started
            asyncio.run(_warm_up(connect, workload))
            server.pause()
            running.append((contender.name, server, connect))
            bar.update()
        for number in range(rounds):
            for name, server, connect in running:
                bar.set_description_str(f"{users} users: {number + 1}/{rounds} {name}")
                server.resume()
                results[name].runs.append(asyncio.run(_load(connect, workload, users, seconds, number)))
                server.pause()
                bar.update()
        for name, server, _ in running:
            results[name].resident_bytes = server.resident_bytes()
    return results


async def _warm_up(connect: Connect, workload: Workload) -> None:
    async with connect() as endpoint:
        requests = workload.requests(_WARM_UP_SEED)
        await closed_loop(endpoint, WARM_UP_REQUESTS, requests, count=WARM_UP_REQUESTS)


async def _load(connect: Connect, workload: Workload, users: int, seconds: float, number: int) -> Run:
    # Prompts that are new to every server, so that no prefix cache contains them.
    requests = workload.requests(1000 * number + users)
    async with connect() as endpoint:
        return await closed_loop(endpoint, users, requests, seconds=seconds)
