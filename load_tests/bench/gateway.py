"""`make bench-gateway`: how much time the OpenAI-compatible gateway adds to each token.

One server runs the real model without its prefix cache. The users are closed loops in one process on the same cores.
They send the same prompts directly to the server over gRPC and through the gateway over HTTP. A token's time is the
time between two tokens of an answer.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TypeAlias

from tqdm import tqdm

from inflight_client import InflightError
from load_tests.bench.requests import bench_requests, check_complete, warm_up_requests
from load_tests.endpoints import Endpoint, grpc_endpoint, openai_endpoint
from load_tests.generator import closed_loop
from load_tests.records import Run
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.served_model import triton_server
from scripts.launch.signals import end_like_ctrl_c
from scripts.launch.triton_server import TritonServer
from scripts.peers.peer import MODEL, Peer

LEVELS = (1, 8, 32)
ROUNDS = 3
READY_SECONDS = 60.0
WARM_UP_USERS = 8
Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Endpoint]]


@contextmanager
def gateway(server: TritonServer) -> Iterator[Peer]:
    """Start a gateway in front of a server, in its own process."""
    command = [sys.executable, "-m", "inflight_gateway", "--server", server.grpc_url]
    command += ["--served-model-name", MODEL, "--metrics-url", server.metrics_url]
    with Peer("the gateway", command, dict(os.environ)) as process:
        process.wait_ready(READY_SECONDS)
        yield process


def num_requests(users: int) -> int:
    """Number of requests that all users send together."""
    return max(4, 2 * users)


def token_seconds(runs: Sequence[Run]) -> float:
    """Mean time between two tokens."""
    records = [record for run in runs for record in run.done]
    weights = [record.output_tokens - 1 for record in records]
    return sum(record.mean_gap * weight for record, weight in zip(records, weights, strict=True)) / sum(weights)


async def compare(ways: dict[str, Connect]) -> dict[tuple[int, str], list[Run]]:
    """Run all loads directly and through the gateway, alternating, with a progress bar."""
    seen: dict[tuple[int, str], list[Run]] = {}
    total = ROUNDS * len(ways) * sum(map(num_requests, LEVELS))
    with tqdm(total=total, bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} requests, {elapsed}") as bar:
        for connect in ways.values():
            async with connect() as endpoint:
                warm_up = warm_up_requests(WARM_UP_USERS)
                check_complete(await closed_loop(endpoint, WARM_UP_USERS, iter(warm_up), count=WARM_UP_USERS))
        for number in range(ROUNDS):
            for users in LEVELS:
                requests = bench_requests(num_requests(users), seed=1000 * number + users)
                for name, connect in ways.items():
                    bar.set_description_str(f"{number + 1}/{ROUNDS} {name}, {users} users")
                    async with connect() as endpoint:
                        run = await closed_loop(
                            endpoint, users, iter(requests), count=len(requests), advance=bar.update
                        )
                    seen.setdefault((users, name), []).append(check_complete(run))
    return seen


def table(seen: dict[tuple[int, str], list[Run]], direct: str, through: str) -> str:
    """Return a Markdown table."""
    lines = [
        "| Users | Tokens/s direct | Through gateway | Ratio | Token's time direct (ms) | Through | Ratio | Rounds |",
        "|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for users in LEVELS:
        pair = seen[users, direct], seen[users, through]
        rates = [sum(run.throughput for run in runs) / len(runs) for runs in pair]
        means = [1000 * token_seconds(runs) for runs in pair]
        rounds = ", ".join(f"{token_seconds([b]) / token_seconds([a]):.2f}" for a, b in zip(*pair, strict=True))
        lines.append(
            f"| {users} | {rates[0]:.0f} | {rates[1]:.0f} | {rates[1] / rates[0]:.2f} "
            f"| {means[0]:.1f} | {means[1]:.1f} | {means[1] / means[0]:.2f} | {rounds} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark and return the exit status. If it is 1, a line on standard error says why."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    settings = {"max_num_seqs": str(max(LEVELS)), "enable_prefix_caching": "false"}
    end_like_ctrl_c()
    try:
        with triton_server(default_model(), **settings) as server, gateway(server) as gate:
            ways: dict[str, Connect] = {
                "direct": partial(grpc_endpoint, server.grpc_url),
                "gateway": partial(openai_endpoint, f"http://{gate.http_url}", MODEL),
            }
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
