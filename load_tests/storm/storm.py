"""The storm itself: users who ask one request after the other, of random kinds, in ten parts."""

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
import tritonclient.grpc.aio as aio
from grpc import RpcError
from tqdm import tqdm

from load_tests.chaos.doors import NotAnswered, open_doors
from load_tests.chaos.service import Service
from load_tests.chaos.users import LIMIT_SECONDS
from load_tests.storm.answers import Answers, Wrong
from load_tests.storm.kinds import KINDS, Kind, Scene, asked_questions
from load_tests.storm.memory import memory_of
from scripts.launch.server_process import ADDRESS

PARTS = 10
FULL, WRONG, ENDLESS = "refused, as the queue was full", "wrong", "without an end"
_MOST_SHOWN = 20
_QUEUE_IS_FULL = "Exceeds maximum queue size"
_POLL_SECONDS = 0.5


@dataclass
class Weather:
    """What was seen of a storm."""

    ends: dict[str, Counter[str]] = field(default_factory=lambda: {kind.name: Counter() for kind in KINDS})
    """How often requests of each kind ended in each way: an `End`'s value, `FULL`, `WRONG` or
    `ENDLESS`."""
    faults: list[str] = field(default_factory=list)
    """The first of what was wrong, in words."""
    memory: list[Mapping[str, int]] = field(default_factory=list)
    """Bytes of each process after each part, when no request was left."""
    seconds: float = 0.0
    """How long all requests took."""
    longest_stall: float = 0.0
    """The longest time in seconds in which the users could do nothing, because this process had no processor."""
    stays_busy: bool = False
    """Whether the model was still busy `IDLE_SECONDS` after a part."""
    replaced: Sequence[str] = ()
    """Processes that did not live from the start to the end."""
    regions: int = 0
    """How many more files are in /dev/shm than before."""


async def learn_answers(service: Service) -> Answers:
    """Ask a service that runs all questions, each alone. Raises NotAnswered if it does not answer one."""
    ports = service.ports
    async with open_doors(ports.grpc, ports.http, ports.gateway, 2 * LIMIT_SECONDS) as (doors, _):
        return await Answers.learn(doors[0], asked_questions())


async def storm(service: Service, answers: Answers, requests: int, users: int, seed: int) -> Weather:
    """Send requests to a service that runs, with a progress bar, and compare what comes with the right answers."""
    weather = Weather()
    async with _scene(service, answers) as scene:
        processes, regions = service.processes(), len(service.shared_memory())
        begun, watching = time.monotonic(), asyncio.create_task(_watch_stalls(weather))
        with tqdm(total=requests, unit="request") as bar:
            for part in range(PARTS):
                count = requests * (part + 1) // PARTS - requests * part // PARTS
                kinds = iter(random.Random(f"{seed} {part}").choices(KINDS, [kind.weight for kind in KINDS], k=count))
                async with asyncio.TaskGroup() as group:
                    for user in range(users):
                        chance = random.Random(f"{seed} {part} {user}")
                        group.create_task(_user(kinds, scene, chance, weather, bar))
                weather.stays_busy |= not await service.server.becomes_idle()
                weather.memory.append(memory_of(service))
        watching.cancel()
        weather.seconds = time.monotonic() - begun
    same = service.processes().keys() & processes.keys()
    weather.replaced = [command for pid, command in processes.items() if pid not in same]
    weather.regions = len(service.shared_memory()) - regions
    return weather


@contextlib.asynccontextmanager
async def _scene(service: Service, answers: Answers) -> AsyncIterator[Scene]:
    ports = service.ports
    async with (
        open_doors(ports.grpc, ports.http, ports.gateway, 2 * LIMIT_SECONDS) as (first, second),
        aio.InferenceServerClient(f"{ADDRESS}:{ports.grpc}") as grpc,
        httpx.AsyncClient(
            base_url=f"http://{ADDRESS}:{ports.http}",
            timeout=2 * LIMIT_SECONDS,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        ) as http,
    ):
        doors = (*first, *second)
        yield Scene(
            streaming=[door for door in first if door.name != "completion"],
            triton=[door for door in doors if "gateway" not in door.name],
            doors=doors,
            grpc=grpc,
            http=http,
            ports=ports,
            answers=answers,
        )


async def _user(
    kinds: Iterator[Kind], scene: Scene, chance: random.Random, weather: Weather, bar: "tqdm[None]"
) -> None:
    """Ask until no kinds are left."""
    for kind in kinds:
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                end = (await kind.ask(scene, chance)).value
        except TimeoutError:
            end = ENDLESS
        except (Wrong, NotAnswered, httpx.HTTPError, RpcError, OSError) as fault:
            end = FULL if _QUEUE_IS_FULL in str(fault) else WRONG
            if end == WRONG and len(weather.faults) < _MOST_SHOWN:
                weather.faults.append(f"{time.strftime('%H:%M:%S')} {kind.name}: {fault}")
                # A storm takes long. Whoever stops it knows what was wrong until then.
                bar.write(weather.faults[-1], file=sys.stderr)
        weather.ends[kind.name][end] += 1
        bar.update()


async def _watch_stalls(weather: Weather) -> None:
    while True:
        due = time.monotonic() + _POLL_SECONDS
        await asyncio.sleep(_POLL_SECONDS)
        weather.longest_stall = max(weather.longest_stall, time.monotonic() - due)
