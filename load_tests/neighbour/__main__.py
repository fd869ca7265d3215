"""`make neighbour`: how much one user who sends the worst requests that are allowed slows the others.

Ordinary users ask one greedy question after the other, each under a tenant of its own. One more is ordinary in every
other turn, and sends one kind of the worst requests in the turns between. The tokens per second of the ordinary ones
beside the worst are compared with those beside the ordinary one. The machine must have nothing else to do.
"""

import argparse
import asyncio
import hashlib
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import aiohttp
import openai
from tqdm import tqdm

from inflight_client import AsyncClient, RetryPolicy
from load_tests.chaos.doors import Door, GatewayDoor, TritonDoor
from load_tests.endpoints import ANSWER_SECONDS, OpenAIEndpoint, grpc_endpoint
from load_tests.neighbour.measure import Neighbour, Ordinary, running, tokens_per_second
from load_tests.neighbour.worst import WORST, Worst
from load_tests.option_types import count, positive
from load_tests.workload import WORKLOADS, read_workload
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.served_model import triton_server
from scripts.launch.signals import end_like_ctrl_c
from scripts.launch.triton_server import TritonServer
from scripts.peers.peer import Peer
from scripts.smolvlm import smolvlm

LEAST = 0.9
"""The fraction of their speed that ordinary users must keep."""
_WORST = "worst"
_READY_SECONDS = 60.0


def _kinds(text: str) -> Mapping[str, Worst]:
    found = {name: worst for name, worst in WORST.items() if any(part in name for part in text.split(","))}
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is in none of: {'; '.join(WORST)}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--users", type=count, default=31, help="number of ordinary users (%(default)s)")
    add("--rounds", type=count, default=3, help="how often each kind has its turn (%(default)s)")
    add("--seconds", type=positive, default=8.0, help="how long each turn is measured (%(default)s)")
    add("--policy", default="fair", help="the server's scheduling_policy (%(default)s)")
    add("--kinds", type=_kinds, default=WORST, metavar="PART,...", help="kinds whose names have one of these parts")
    add("--images", action="store_true", help="serve a model that reads images, for the kind that sends them")
    add("--gateway", action="store_true", help="go through the gateway, with an API key for each user")
    return parser


@contextmanager
def _gateway(server: TritonServer, names: Sequence[str]) -> Iterator[str]:
    """A gateway with an API key for each user: the user's name. Yields its URL."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as keys:
        for name in names:
            keys.write(f'[[keys]]\nname = "{name}"\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n')
        keys.flush()
        command = [sys.executable, "-m", "inflight_gateway", f"--server={server.grpc_url}", f"--api-keys={keys.name}"]
        with Peer("the gateway", command, dict(os.environ)) as process:
            process.wait_ready(_READY_SECONDS)
            yield f"http://{process.http_url}"


@asynccontextmanager
async def _through_gateway(url: str, names: Sequence[str]) -> AsyncIterator[tuple[list[Ordinary], Door]]:
    load = read_workload(WORKLOADS / "greedy.yaml")
    async with AsyncExitStack() as stack:
        ordinary = []
        for seed, name in enumerate(names):
            session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {name}"}, timeout=aiohttp.ClientTimeout(ANSWER_SECONDS)
            )
            endpoint = OpenAIEndpoint(name, url, "llm", await stack.enter_async_context(session))
            ordinary.append(Ordinary(name, endpoint, load.requests(seed)))
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=names[-1], max_retries=0, timeout=ANSWER_SECONDS)
        yield ordinary, GatewayDoor("gateway", await stack.enter_async_context(client))


@asynccontextmanager
async def _through_triton(url: str, names: Sequence[str]) -> AsyncIterator[tuple[list[Ordinary], Door]]:
    load = read_workload(WORKLOADS / "greedy.yaml")
    async with grpc_endpoint(url) as endpoint, AsyncClient(f"grpc://{url}", retry=RetryPolicy(attempts=1)) as client:
        yield [Ordinary(name, endpoint, load.requests(seed)) for seed, name in enumerate(names)], TritonDoor("", client)


async def _measure(
    ordinary: Sequence[Ordinary], door: Door, options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """For each kind, the tokens per second of all but the last user: beside the last one, and beside the worst.

    Raises LauncherError if requests of the users failed, or those of the worst ended otherwise than they should.
    """
    *users, beside = ordinary
    neighbour = Neighbour(door, random.Random(0), None if options.gateway else _WORST)
    seen = dict.fromkeys(options.kinds, (0.0, 0.0))
    async with running(*(user.run() for user in users)):
        with tqdm(total=2 * options.rounds * len(options.kinds), unit="turn") as bar:
            for _ in range(options.rounds):
                for name, worst in options.kinds.items():
                    bar.set_description_str(name)
                    speeds = []
                    for turn in (beside.run(), neighbour.run(worst)):
                        async with running(turn):
                            speeds.append(await tokens_per_second(users, options.seconds))
                        bar.update()
                    if neighbour.unexpected:
                        raise LauncherError(
                            f"{len(neighbour.unexpected)} requests of the kind {name!r} did not end as they should, "
                            f"the first was {neighbour.unexpected[0]}"
                        )
                    seen[name] = (seen[name][0] + speeds[0], seen[name][1] + speeds[1])
    if failures := [failure for user in users for failure in user.failures]:
        raise LauncherError(f"{len(failures)} requests of ordinary users failed, the first with {failures[0]}")
    if silent := [name for name, (alone, _) in seen.items() if not alone]:
        raise LauncherError(f"the users got no token in their turns beside {silent[0]!r}; try more --seconds")
    return {name: (alone / options.rounds, worst / options.rounds) for name, (alone, worst) in seen.items()}


async def _run(server: TritonServer, url: str | None, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    names = [f"user-{number}" for number in range(options.users)] + [_WORST if options.gateway else "beside"]
    through = _through_triton(server.grpc_url, names) if url is None else _through_gateway(url, names)
    async with through as (ordinary, door):
        return await _measure(ordinary, door, options)


def main() -> int:
    """Print a Markdown table. Return 0 if ordinary users kept `LEAST` of their speed beside every kind, else 1."""
    parser = _parser()
    options = parser.parse_args()
    options.kinds = {
        name: worst
        for name, worst in options.kinds.items()
        if (worst.at_the_gateway or not options.gateway) and (options.images or not worst.reads_images)
    }
    if not options.kinds:
        parser.error("no kind is left: large images need --images, and the gateway does not take the fields of some")
    end_like_ctrl_c()
    try:
        model = smolvlm() if options.images else default_model()
        with triton_server(model, scheduling_policy=options.policy) as server:
            if options.gateway:
                with _gateway(server, [f"user-{n}" for n in range(options.users)] + [_WORST]) as url:
                    seen = asyncio.run(_run(server, url, options))
            else:
                seen = asyncio.run(_run(server, None, options))
    except KeyboardInterrupt:
        return 130
    except LauncherError as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    print("| One user sends | Tokens/s of the others | Beside an ordinary one | Ratio |\n|---|---:|---:|---:|")
    for name, (alone, worst) in seen.items():
        print(f"| {name} | {worst:.0f} | {alone:.0f} | {worst / alone:.2f} |")
    return 0 if all(worst >= LEAST * alone for alone, worst in seen.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
