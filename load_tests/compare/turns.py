"""Runs servers alternately under the same workloads."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product

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
    """All rounds of one server under one workload."""

    runs: list[Run] = field(default_factory=list)
    ready_seconds: float = 0.0
    """Time from its start until it was ready."""
    resident_bytes: int = 0
    """Its memory after the last round."""

    def of(self, measure: Callable[[Run], float]) -> list[float]:
        """The value of a measure in each round."""
        return [measure(run) for run in self.runs]


@dataclass
class Running:
    """A server that has been started. It runs only while it is awake."""

    name: str
    process: ServerProcess
    connect: Connect

    @contextmanager
    def awake(self) -> Iterator[Connect]:
        """Let the server run. It is paused (SIGSTOP) afterwards."""
        self.process.resume()
        yield self.connect
        self.process.pause()


@contextmanager
def paused(contender: Contender, users: int) -> Iterator[Running]:
    """Start a server and pause it as soon as it is ready. It ends at the exit."""
    with contender.start(users) as (process, connect):
        process.pause()
        yield Running(contender.name, process, connect)


def compare(
    contenders: Sequence[Contender], workloads: Sequence[Workload], *, users: int, rounds: int, seconds: float
) -> dict[str, dict[str, Compared]]:
    """Start all servers and run them alternately, under one workload after the other, with a progress bar.

    A server is paused while another one runs. Returns the records by the names of workload and contender.
    """
    results = {workload.name: {each.name: Compared() for each in contenders} for workload in workloads}
    turns = len(contenders) * (1 + len(workloads) * (rounds + 1))
    with ExitStack() as stack, tqdm(total=turns, unit="run") as bar:
        running = []
        for contender in contenders:
            bar.set_description_str(f"{users} users: starting {contender.name}")
            started = time.perf_counter()
            running.append(stack.enter_context(paused(contender, users)))
            for compared in results.values():
                compared[contender.name].ready_seconds = time.perf_counter() - started
            bar.update()
        for position, workload in enumerate(workloads):
            for server in running:
                bar.set_description_str(f"{users} users, {workload.name}: warming up {server.name}")
                with server.awake() as connect:
                    asyncio.run(warm_up(connect, workload))
                bar.update()
            for number, server in product(range(rounds), running):
                bar.set_description_str(f"{users} users, {workload.name}: {number + 1}/{rounds} {server.name}")
                with server.awake() as connect:
                    seed = 1_000 * (position * rounds + number) + users
                    run = asyncio.run(_load(connect, workload, users, seconds, seed))
                results[workload.name][server.name].runs.append(run)
                bar.update()
            for server in running:
                results[workload.name][server.name].resident_bytes = server.process.resident_bytes()
    return results


async def warm_up(connect: Connect, workload: Workload) -> None:
    """Let a server answer a few requests that no measurement sends."""
    async with connect() as endpoint:
        requests = workload.requests(_WARM_UP_SEED)
        await closed_loop(endpoint, WARM_UP_REQUESTS, requests, count=WARM_UP_REQUESTS)


async def _load(connect: Connect, workload: Workload, users: int, seconds: float, seed: int) -> Run:
    # Every round of every workload has a seed of its own, so that its prompts are in no server's prefix cache.
    async with connect() as endpoint:
        return await closed_loop(endpoint, users, workload.requests(seed), seconds=seconds)
