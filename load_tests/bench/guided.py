"""`make bench-guided`: what guided decoding costs, and what its forced tokens gain.

Users stream over gRPC in closed loops. All loads ask the same prompt for the same number of tokens, and take turns:

    free      without a constraint
    story     a JSON object with one long string, in which almost every token is sampled
    records   an array of objects, of which the grammar forces more than half of the tokens

Then come the time to first token with schemas that the server has never seen, also while many costly ones of another
tenant wait to be compiled, and the gaps between the tokens of others while a client sends constraints that are made to
cost much.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from tqdm import tqdm

from inflight_client import AsyncClient, InflightError
from load_tests.bench.malicious_schemas import MALICIOUS
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.served_model import triton_server
from scripts.launch.signals import end_like_ctrl_c

USERS = (1, 8, 32)
ROUNDS = 5
SECONDS = 6.0
TOKENS = 96
NEW_SCHEMAS = 40
COSTLY_SCHEMAS = 32
NEIGHBOURS = 8
_RULE = "|---:|---:|---:|---:|\n"
PROMPT = "Here is a JSON document about people and their lives: "
Fields = Mapping[str, object]

_NAME = {"type": "string", "maxLength": 12}
_PERSON = {"first_name": _NAME, "last_name": _NAME, "age": {"type": "integer", "minimum": 0}, "city_of_birth": _NAME}


def _object(properties: Mapping[str, object]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LOADS: dict[str, Fields] = {
    "free": {},
    "story": {"guided_json": _object({"story": {"type": "string", "minLength": 2000}})},
    "records": {"guided_json": {"type": "array", "items": _object(_PERSON), "minItems": 30}},
}
_numbers = itertools.count()


@dataclass
class Received:
    """What users have received."""

    tokens: int = 0
    first_tokens: list[float] = field(default_factory=list)
    """Seconds from the request to the first piece of text."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two pieces."""

    async def ask(self, client: AsyncClient, fields: Fields) -> None:
        """Send one request, and read its answer."""
        last = time.perf_counter()
        times = self.first_tokens
        parameters = {"ignore_eos": True, **fields}
        async with client.stream(
            PROMPT,
            max_tokens=TOKENS,
            temperature=0.7,
            seed=next(_numbers),
            return_token_ids=True,
            sampling_parameters=parameters,
        ) as chunks:
            async for chunk in chunks:
                self.tokens += len(chunk.token_ids)
                now = time.perf_counter()
                times.append(now - last)
                last, times = now, self.gaps

    async def loop(self, client: AsyncClient, fields: Fields) -> None:
        """Send requests without end."""
        while True:
            await self.ask(client, fields)


async def _during(seconds: float, users: int, client: AsyncClient, fields: Fields) -> Received:
    """What closed loops of `users` users receive within a time."""
    received = Received()
    loops = [asyncio.create_task(received.loop(client, fields)) for _ in range(users)]
    done, _ = await asyncio.wait(loops, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in loops:
        task.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    for task in done:
        task.result()  # Raises what ended it.
    return received


async def throughput(client: AsyncClient) -> list[str]:
    """A line for each number of users: tokens per second without a constraint, and ratios to it."""
    rates: dict[tuple[int, str], list[float]] = {(users, name): [] for users in USERS for name in LOADS}
    turns = [(users, name) for users in USERS for _ in range(ROUNDS) for name in LOADS]
    for users, name in tqdm(turns, desc="throughput"):
        received = await _during(SECONDS, users, client, LOADS[name])
        rates[users, name].append(received.tokens / SECONDS)
    lines = []
    for users in USERS:
        free, story, records = (median(rates[users, name]) for name in LOADS)
        lines.append(f"| {users} | {free:.0f} | {story / free:.2f} | {records / free:.2f} |")
    return lines


async def first_tokens(client: AsyncClient) -> str:
    """A line with the median time to first token: without a schema, with a known one, with new ones."""
    found = {"none": Received(), "known": Received(), "new": Received()}
    for number in tqdm(range(NEW_SCHEMAS), desc="first tokens"):
        for name, fields in (("none", {}), ("known", LOADS["records"]), ("new", _new_schema(f"a{number}"))):
            await found[name].ask(client, fields)
    found["behind others"] = await _behind_costly_schemas(client)
    times = (1000 * median(received.first_tokens) for received in found.values())
    return f"| {' | '.join(f'{milliseconds:.1f}' for milliseconds in times)} |"


def _new_schema(name: str) -> Fields:
    return {"guided_json": _object({f"{name}_{i}": _NAME for i in range(8)})}


async def _behind_costly_schemas(client: AsyncClient) -> Received:
    """What is received with a new schema while another tenant's wait, each of which takes long to compile."""
    costly = [
        {"guided_json": {"type": "object", "properties": {f"p{number}_{i}": _NAME for i in range(1200)}}}
        for number in range(COSTLY_SCHEMAS)
    ]
    waiting = [asyncio.create_task(Received().ask(client, {**fields, "tenant": "costly"})) for fields in costly]
    await asyncio.sleep(0.5)  # Until they have arrived.
    received = Received()
    await received.ask(client, _new_schema("b"))
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return received


async def beside_attackers(client: AsyncClient) -> list[str]:
    """A line for each bad constraint: how long its answer takes, and the gaps of the users beside it."""
    alone = await _during(SECONDS, NEIGHBOURS, client, {})
    lines = [f"| none | | {_milliseconds(alone.gaps)} |"]
    for name, fields in tqdm(MALICIOUS.items(), desc="attackers"):
        beside = asyncio.create_task(_during(SECONDS, NEIGHBOURS, client, {}))
        await asyncio.sleep(SECONDS / 3)
        begun, ending = time.perf_counter(), "answered"
        try:
            await Received().ask(client, fields)
        except InflightError as error:
            ending = type(error).__name__
        seconds = time.perf_counter() - begun
        lines.append(f"| {name} | {ending} after {seconds:.2f} s | {_milliseconds((await beside).gaps)} |")
    return lines


def _milliseconds(gaps: Sequence[float]) -> str:
    p99 = quantiles(gaps, n=100)[98]
    return f"{1000 * median(gaps):.0f} | {1000 * p99:.0f} | {1000 * max(gaps):.0f}"


async def measure(url: str) -> None:
    """Measure a server, and print Markdown tables."""
    async with AsyncClient(f"grpc://{url}") as client:
        for fields in LOADS.values():
            await _during(SECONDS / 2, NEIGHBOURS, client, fields)  # Warm up.
        rates = "\n".join(await throughput(client))
        print(f"\n| Users | Tokens/s without a constraint | story, to that | records, to that |\n{_RULE}{rates}")
        firsts = await first_tokens(client)
        print(
            f"\n| First token p50 (ms), no schema | a known one | a new one | behind 32 costly ones |\n{_RULE}{firsts}"
        )
        attacks = "\n".join(await beside_attackers(client))
    print("\n| Constraint | The attacker's request | Others' gaps p50 (ms) | p99 | longest |\n|---|---|---:|---:|---:|")
    print(attacks)


def main() -> int:
    """Measure, and return the exit status."""
    end_like_ctrl_c()
    try:
        with triton_server(default_model()) as server:
            asyncio.run(measure(server.grpc_url))
    except KeyboardInterrupt:
        return 130
    except (LauncherError, InflightError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
