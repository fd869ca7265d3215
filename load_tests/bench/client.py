"""`make bench-client`: the overhead of the client library over the generated gRPC stubs that it uses.

A real server runs a model that computes nothing (load_tests/metronome), so only the transport takes time. The stubs
send the same messages and read the same responses, but do not parse their contents. Client and stub alternate for
several rounds; ratios are of the sums. Afterwards one client sends many requests while the benchmark reads the memory
of its process.
"""

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
import numpy as np
from tqdm import tqdm
from tritonclient.grpc import service_pb2_grpc

from inflight_client import AsyncClient, Client, InflightError, Sampling
from inflight_client.request import make_request
from inflight_client.transport.grpc_wire import encode
from scripts.launch.errors import LauncherError
from scripts.launch.signals import end_like_ctrl_c
from scripts.launch.triton_server import TritonServer

METRONOME = Path(__file__).parents[1] / "metronome"
PROMPT = "a prompt of six short words"
ROUNDS = 3
MEMORY_REQUESTS = (2_000, 20_000)
MEMORY_STEP = 1_000
TIMEOUT = 60.0
READY_SECONDS = 60.0


@dataclass(frozen=True)
class UserLoad:
    """A closed loop: a number of users, the requests of each, and the tokens of each request."""

    users: int
    requests: int
    tokens: int

    @property
    def stream(self) -> bool:
        """Whether each token arrives in a response of its own."""
        return self.tokens > 1


LOADS = (UserLoad(1, 500, 1), UserLoad(32, 50, 1), UserLoad(1, 10, 200), UserLoad(64, 2, 200))


@dataclass
class Seen:
    """Results of one client under one load. Times are in seconds."""

    latencies: list[float] = field(default_factory=list)
    elapsed: float = 0.0


Way: TypeAlias = Callable[[str, UserLoad], list[float]]
"""Runs a load against a server's gRPC address. Returns the seconds of each request."""


def threads(load: UserLoad, ask: Callable[[], object]) -> list[float]:
    """Run a load with a thread for each user."""

    def user() -> list[float]:
        return [_timed(ask) for _ in range(load.requests)]

    with ThreadPoolExecutor(load.users) as pool:
        users = [pool.submit(user) for _ in range(load.users)]
        return [seconds for each in users for seconds in each.result()]


def _timed(ask: Callable[[], object]) -> float:
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started


async def tasks(load: UserLoad, ask: Callable[[], Awaitable[object]]) -> list[float]:
    """Run a load with a task for each user."""

    async def user() -> list[float]:
        seconds = []
        for _ in range(load.requests):
            started = time.perf_counter()
            await ask()
            seconds.append(time.perf_counter() - started)
        return seconds

    each = await asyncio.gather(*(user() for _ in range(load.users)))
    return [seconds for user_seconds in each for seconds in user_seconds]


def stub_threads(url: str, load: UserLoad) -> list[float]:
    """The generated stub with threads."""
    message = _message(load)
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def ask() -> None:
            for response in stub.ModelStreamInfer(iter([message]), timeout=TIMEOUT):
                _check(response)

        return threads(load, ask)


def client_threads(url: str, load: UserLoad) -> list[float]:
    """`Client`."""
    with Client(url) as client:

        def ask() -> None:
            if load.stream:
                with client.stream(PROMPT, max_tokens=load.tokens) as stream:
                    for _ in stream:
                        pass
            else:
                client.generate(PROMPT, max_tokens=load.tokens)

        return threads(load, ask)


def stub_tasks(url: str, load: UserLoad) -> list[float]:
    """The generated stub with asyncio."""
    message = _message(load)

    async def run() -> list[float]:
        async with grpc.aio.insecure_channel(url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

            async def ask() -> None:
                async for response in stub.ModelStreamInfer(iter([message]), timeout=TIMEOUT):
                    _check(response)

            return await tasks(load, ask)

    return asyncio.run(run())


def client_tasks(url: str, load: UserLoad) -> list[float]:
    """`AsyncClient`."""

    async def run() -> list[float]:
        async with AsyncClient(url) as client:

            async def ask() -> None:
                if load.stream:
                    async with client.stream(PROMPT, max_tokens=load.tokens) as stream:
                        async for _ in stream:
                            pass
                else:
                    await client.generate(PROMPT, max_tokens=load.tokens)

            return await tasks(load, ask)

    return asyncio.run(run())


def _message(load: UserLoad) -> Any:
    return encode(make_request("llm", PROMPT, None, Sampling(max_tokens=load.tokens), stream=load.stream), TIMEOUT)


def _check(response: Any) -> None:
    if response.error_message:
        raise RuntimeError(f"the server answered: {response.error_message}")


PAIRS: tuple[tuple[str, Way, Way], ...] = (
    ("Client", client_threads, stub_threads),
    ("AsyncClient", client_tasks, stub_tasks),
)


def compare(url: str) -> dict[tuple[UserLoad, str], tuple[Seen, Seen]]:
    """Run all loads with all clients, alternating, with a progress bar. Returns the results of client and stub."""
    seen = {(load, name): (Seen(), Seen()) for load in LOADS for name, *_ in PAIRS}
    with tqdm(total=2 * ROUNDS * len(seen), bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} runs, {elapsed}") as bar:
        for _ in range(ROUNDS):
            for load in LOADS:
                for name, ours, stub in PAIRS:
                    for way, result in zip((ours, stub), seen[load, name], strict=True):
                        started = time.perf_counter()
                        result.latencies += way(url, load)
                        result.elapsed += time.perf_counter() - started
                        bar.update()
    return seen


def table(seen: dict[tuple[UserLoad, str], tuple[Seen, Seen]]) -> str:
    """Return a Markdown table."""
    lines = [
        "| At once | Tokens | | Requests/s | Stub's | Ratio | Request p50, p99 (ms) | Stub's | Added (ms) |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (load, name), (ours, stub) in seen.items():
        rates = [len(each.latencies) / each.elapsed for each in (ours, stub)]
        p50, p99 = zip(*(1000 * np.percentile(each.latencies, (50, 99)) for each in (ours, stub)), strict=True)
        lines.append(
            f"| {load.users} | {load.tokens} | {name} | {rates[0]:.0f} | {rates[1]:.0f} | {rates[0] / rates[1]:.2f} "
            f"| {p50[0]:.1f}, {p99[0]:.1f} | {p50[1]:.1f}, {p99[1]:.1f} | {p50[0] - p50[1]:.2f} |"
        )
    return "\n".join(lines)


async def memory(url: str) -> str:
    """Send many requests with one client and report the memory of this process over time."""
    sizes = []
    async with AsyncClient(url) as client:
        for done in tqdm(range(MEMORY_STEP, max(MEMORY_REQUESTS) + 1, MEMORY_STEP), unit_scale=MEMORY_STEP):
            await client.generate_many([PROMPT] * MEMORY_STEP, concurrency=64, max_tokens=4)
            if done in MEMORY_REQUESTS:
                sizes.append(f"{resident_bytes() / 2**20:.0f} MiB after {done} requests")
    return "memory of the client's process: " + ", ".join(sizes)


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> int:
    """Run the benchmark and return the exit status. If it is 1, a line on standard error says why."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    end_like_ctrl_c()
    try:
        with TritonServer(METRONOME, drain_seconds=2) as server:
            server.wait_ready(READY_SECONDS, ["llm"])
            results = compare(server.grpc_url)
            grown = asyncio.run(memory(server.grpc_url))
    except KeyboardInterrupt:
        return 130
    except (LauncherError, RuntimeError, InflightError, grpc.RpcError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    print(f"{table(results)}\n\n{grown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
