"""`make bench-gateway`: what the OpenAI-compatible gateway adds to a token's time.

One server with the real model and without its prefix cache. Users in one process, on the same cores, are closed loops
as in `make bench-peers`: straight to the server over gRPC, and through the gateway over HTTP, in turn, with the same
prompts. A token's time is that from one to the next within an answer.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial

from tqdm import tqdm

from inflight_client import InflightError
from load_tests.bench.peers import Load, Stream, closed_loop, connect_triton, num_tasks, tasks_of
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.served_model import triton_server
from scripts.launch.triton_server import TritonServer
from scripts.peers.peer import MODEL, Peer

LEVELS = (1, 8, 32)
ROUNDS = 3
READY_SECONDS = 60.0
WARM_UP_SEED = 1_000_000
Connect = Callable[[], AbstractAsyncContextManager[Stream]]


@contextmanager
def gateway(server: TritonServer) -> Iterator[Peer]:
    """A gateway in front of a server, in a process of its own."""
    command = [sys.executable, "-m", "inflight_gateway", "--server", server.grpc_url]
    command += ["--served-model-name", MODEL]
    with Peer("the gateway", command, dict(os.environ)) as process:
        process.wait_ready(READY_SECONDS)
        yield process


def token_seconds(load: Load) -> float:
    """Mean time from a token to the next."""
    return sum(load.gaps) / (load.tokens - len(load.first_tokens))


async def compare(ways: dict[str, Connect]) -> dict[tuple[int, str], list[Load]]:
    """Run all loads in all ways, in turn, behind a progress bar."""
    seen: dict[tuple[int, str], list[Load]] = {}
    total = ROUNDS * len(ways) * sum(map(num_tasks, LEVELS))
    with tqdm(total=total, bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} requests, {elapsed}") as bar:
        for connect in ways.values():
            async with connect() as stream:
                await closed_loop(stream, 8, tasks_of(8, WARM_UP_SEED), lambda: None)
        for number in range(ROUNDS):
            for users in LEVELS:
                for name, connect in ways.items():
                    bar.set_description_str(f"{number + 1}/{ROUNDS} {name}, {users} users")
                    async with connect() as stream:
                        load = await closed_loop(stream, users, tasks_of(users, number), bar.update)
                    seen.setdefault((users, name), []).append(load)
    return seen


def table(seen: dict[tuple[int, str], list[Load]], direct: str, through: str) -> str:
    """Return a Markdown table."""
    lines = [
        "| Users | Tokens/s direct | Through gateway | Ratio | Token's time direct (ms) | Through | Ratio | Rounds |",
        "|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for users in LEVELS:
        pair = seen[users, direct], seen[users, through]
        rates = [sum(load.tokens for load in each) / sum(load.seconds for load in each) for each in pair]
        times = [[1000 * token_seconds(load) for load in each] for each in pair]
        means = [sum(each) / len(each) for each in times]
        rounds = ", ".join(f"{b / a:.2f}" for a, b in zip(*times, strict=True))
        lines.append(
            f"| {users} | {rates[0]:.0f} | {rates[1]:.0f} | {rates[1] / rates[0]:.2f} "
            f"| {means[0]:.1f} | {means[1]:.1f} | {means[1] / means[0]:.2f} | {rounds} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run all and return the exit status; where it is 1 a line says why."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    settings = {"max_num_seqs": str(max(LEVELS)), "enable_prefix_caching": "false"}
    try:
        with triton_server(default_model(), **settings) as server, gateway(server) as gate:
            ways: dict[str, Connect] = {"direct": partial(connect_triton, server.grpc_url), "gateway": gate.connect}
            seen = asyncio.run(compare(ways))
            resident = gate.resident_bytes()
    except KeyboardInterrupt:
        return 130
    except (LauncherError, RuntimeError, OSError, InflightError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    print(table(seen, *ways))
    print(f"\nmemory of the gateway: {resident / 2**20:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
