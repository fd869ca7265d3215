"""`make bench-peers`: this server beside vLLM's and llama.cpp's, on one machine under the same load.

Each server runs alone, with the same weights in bfloat16 (vLLM computes in float32 where torch has no fast products of
that), on all cores and as its makers advise for them, and they take turns. Users are closed loops: each sends its next
request, a prompt of 30 to 120 words for 48 to 96 tokens, as soon as its last one is answered, and streams; ours over
Triton's gRPC, the others over their HTTP. The users are one process on the cores of the server. The first token is
timed from sending on, a gap from one piece of an answer to the next.

`make peers` installs the others; those that are not are left out, and named.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from tqdm import tqdm

from inflight_client import AsyncClient, InflightError, RetryPolicy, Timeouts
from load_tests.bench.systems import ANSWER_SECONDS
from load_tests.bench.workload import workload
from load_tests.workload import OUTPUT_TOKENS, Task
from scripts.launch.default_model import default_model
from scripts.launch.environment import environment
from scripts.launch.errors import LauncherError
from scripts.launch.served_model import triton_server
from scripts.peers import llama_cpp, vllm
from scripts.peers.dtype import best_dtype
from scripts.peers.peer import Peer, check_whole

LEVELS = (1, 8, 32, 64)
ROUNDS = 2
PEER_READY_SECONDS = 300.0
OURS = "Inflight"
# Prompts that no server has seen, so that none finds them in its prefix cache.
WARM_UP_SEED = 1_000_000

Stream: TypeAlias = Callable[[str, int], AsyncIterator[str]]
"""Answers a prompt with so many tokens, in pieces."""


@dataclass(frozen=True)
class Load:
    """What some users saw of a server, times in seconds."""

    tokens: int
    seconds: float
    first_tokens: list[float]
    gaps: list[float]


@dataclass
class Measured:
    """All rounds of one server."""

    loads: dict[int, list[Load]] = field(default_factory=dict)
    """By the number of users."""
    resident_bytes: int = 0
    """After the largest load."""
    ready_seconds: float = 0.0
    """The longest wait for it."""

    def tokens_per_second(self, users: int) -> float:
        loads = self.loads[users]
        return sum(load.tokens for load in loads) / sum(load.seconds for load in loads)


@dataclass(frozen=True)
class Running:
    """A server that has answered its warm-up."""

    connect: Callable[[], AbstractAsyncContextManager[Stream]]
    resident_bytes: Callable[[], int]


@dataclass(frozen=True)
class Contender:
    """A server that is measured; `start` takes how many users there are at most."""

    start: Callable[[int], AbstractContextManager[Running]]
    restarts: bool = False
    """Whether it is started for each number of users, as places that nobody has slow it down."""

    def shifts(self) -> list[tuple[int, ...]]:
        """The numbers of users that one start of it serves."""
        return [(users,) for users in LEVELS] if self.restarts else [LEVELS]


@contextlib.contextmanager
def inflight_server(folder: Path, users: int, **settings: str) -> Iterator[Running]:
    """Serve with Triton and this project's model; `settings` are model parameters besides the usual ones."""
    with triton_server(folder, max_num_seqs=str(users), **settings) as server:
        yield Running(partial(connect_triton, server.grpc_url), server.resident_bytes)


@contextlib.asynccontextmanager
async def connect_triton(url: str) -> AsyncIterator[Stream]:
    """A function that streams answers over Triton's gRPC."""
    async with AsyncClient(url, timeouts=Timeouts(total=ANSWER_SECONDS), retry=RetryPolicy(attempts=1)) as client:

        async def stream(prompt: str, output_tokens: int) -> AsyncIterator[str]:
            finish_reason = None
            async with client.stream(prompt, max_tokens=output_tokens, ignore_eos=True, temperature=0.0) as chunks:
                async for chunk in chunks:
                    finish_reason = chunk.finish_reason
                    yield chunk.text
            check_whole(OURS, finish_reason)

        yield stream


@contextlib.contextmanager
def peer_server(make: Callable[[int], Peer], users: int) -> Iterator[Running]:
    """Serve with another server."""
    with make(users) as server:
        server.wait_ready(PEER_READY_SECONDS)
        yield Running(server.connect, server.resident_bytes)


async def ask(stream: Stream, task: Task) -> tuple[float, list[float]]:
    """Read an answer to its end: seconds to its first text, and between its pieces.

    Raises RuntimeError where there is no text.
    """
    sent = time.perf_counter()
    times = [time.perf_counter() async for text in stream(task.prompt, task.output_tokens) if text]
    if not times:
        raise RuntimeError(f"an answer of {task.output_tokens} tokens has no text")
    return times[0] - sent, [later - earlier for earlier, later in itertools.pairwise(times)]


async def closed_loop(stream: Stream, users: int, tasks: Sequence[Task], advance: Callable[[], object]) -> Load:
    """Let that many users at once answer the tasks between them."""
    firsts: list[float] = []
    gaps: list[float] = []
    waiting = iter(tasks)

    async def user() -> None:
        for task in waiting:
            first, between = await ask(stream, task)
            firsts.append(first)
            gaps.extend(between)
            advance()

    started = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    return Load(sum(task.output_tokens for task in tasks), time.perf_counter() - started, firsts, gaps)


async def measure(
    server: Running, levels: Sequence[int], seed: int, measured: Measured, advance: Callable[[], object]
) -> None:
    """Warm a server up and run some loads."""
    async with server.connect() as stream:
        warm_up = workload(max(levels), OUTPUT_TOKENS, WARM_UP_SEED + seed)
        await closed_loop(stream, max(levels), warm_up, lambda: None)
        for users in levels:
            load = await closed_loop(stream, users, tasks_of(users, seed), advance)
            measured.loads.setdefault(users, []).append(load)
    measured.resident_bytes = max(measured.resident_bytes, server.resident_bytes())


def num_tasks(users: int) -> int:
    """How many requests that many users send between them."""
    return max(4, 2 * users)


def tasks_of(users: int, seed: int) -> list[Task]:
    """The requests of a round: the same for every server, others in every round and for every number of users."""
    return workload(num_tasks(users), OUTPUT_TOKENS, 1000 * seed + users)


def compare(contenders: dict[str, Contender]) -> dict[str, Measured]:
    """Measure all servers in turn, as often as there are rounds, behind a progress bar."""
    results = {name: Measured() for name in contenders}
    total = ROUNDS * len(contenders) * sum(map(num_tasks, LEVELS))
    with tqdm(total=total, bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} requests, {elapsed}") as bar:
        for number in range(1, ROUNDS + 1):
            for name, contender in contenders.items():
                bar.set_description_str(f"{number}/{ROUNDS} {name}")
                for levels in contender.shifts():
                    before = time.perf_counter()
                    with contender.start(max(levels)) as server:
                        waited = time.perf_counter() - before
                        results[name].ready_seconds = max(results[name].ready_seconds, waited)
                        asyncio.run(measure(server, levels, number, results[name], bar.update))
    return results


def table(results: dict[str, Measured]) -> str:
    """Return a Markdown table; the ratio is ours to theirs."""
    lines = [
        "| Users | Server | Tokens/s | Each round | Ours to theirs | First token p50, p99 (ms) | Gap p50, p99 (ms) |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for users in LEVELS:
        for name, measured in results.items():
            loads = measured.loads[users]
            rate = measured.tokens_per_second(users)
            rounds = ", ".join(f"{load.tokens / load.seconds:.0f}" for load in loads)
            firsts = _percentiles([second for load in loads for second in load.first_tokens])
            gaps = _percentiles([second for load in loads for second in load.gaps])
            ratio = f"{results[OURS].tokens_per_second(users) / rate:.2f}" if name != OURS else ""
            lines.append(f"| {users} | {name} | {rate:.0f} | {rounds} | {ratio} | {firsts} | {gaps} |")
    return "\n".join(lines)


def _percentiles(seconds: Sequence[float]) -> str:
    return ", ".join(f"{1000 * value:.0f}" for value in np.percentile(seconds, (50, 99)))


def notes(results: dict[str, Measured]) -> str:
    """What else was seen of each server."""
    return "\n".join(
        f"{name}: ready after {measured.ready_seconds:.0f} s; {measured.resident_bytes / 2**30:.1f} GiB of memory "
        f"after {max(LEVELS)} users"
        for name, measured in results.items()
    )


def main() -> int:
    """Run the comparison and return its exit status; where it is 1 a line says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times there too")
    options = parser.parse_args()
    # As Ctrl-C, so that `kill` stops the server too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        folder = default_model()
        contenders = {OURS: Contender(partial(inflight_server, folder))}
        if vllm.installed():
            contenders[vllm.NAME] = Contender(partial(peer_server, partial(vllm.server, folder)))
        if llama_cpp.installed():
            contenders[llama_cpp.NAME] = Contender(partial(peer_server, llama_cpp.server), restarts=True)
        absent = [name for name in (vllm.NAME, llama_cpp.NAME) if name not in contenders]
        results = compare(contenders)
    except KeyboardInterrupt:
        return 130
    except (LauncherError, RuntimeError, OSError, InflightError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    machine = environment("bfloat16", "cpu") | {vllm.NAME: f"{best_dtype()}, {vllm.allocator() or 'malloc of libc'}"}
    about = "; ".join(f"{name}: {value}" for name, value in machine.items())
    print(f"{table(results)}\n\n{notes(results)}\nabsent: {', '.join(absent) or 'none'}\n{about}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({name: dataclasses.asdict(m) for name, m in results.items()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
