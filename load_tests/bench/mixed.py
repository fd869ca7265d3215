"""`make bench-mixed`: how evenly tokens come while long prompts arrive.

Users hold streams that decode, and after a while another client sends a prompt of 500 tokens each second. A server is
started for each token budget: the adaptive one of config.pbtxt, which takes no more prompt tokens
into a step than leave the decodes their pace, and fixed ones. Gaps are those between the pieces of the users' answers.
"""

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from inflight_client import InflightError
from load_tests.bench.peers import Stream, inflight_server
from load_tests.workload import VOCABULARY
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError

USERS = 32
UNDISTURBED_SECONDS = 8.0
ARRIVALS = 12
PROMPT_WORDS = 500
"""Words of the vocabulary are a token each."""
USER_TOKENS = 900
BUDGETS: tuple[Mapping[str, str], ...] = (
    {},
    {"token_budget": "fixed"},
    {"token_budget": "fixed", "max_num_batched_tokens": "256"},
)


async def user(stream: Stream, number: int, times: list[list[float]]) -> None:
    """Hold a stream, noting when each piece comes."""
    times.append([])
    mine = times[-1]
    async for _ in stream(f"Story number {number}: once upon a time", USER_TOKENS):
        mine.append(time.perf_counter())


def check_running(users: Sequence[asyncio.Task[None]]) -> None:
    """Raise what ended a user's stream, or RuntimeError where it came to its end."""
    for task in users:
        if task.done():
            task.result()
            raise RuntimeError(f"a stream of {USER_TOKENS} tokens ended before the prompts did")


async def first_token(stream: Stream, prompt: str) -> float:
    """Seconds until the answer to a prompt begins."""
    sent = time.perf_counter()
    times = [time.perf_counter() async for _ in stream(prompt, 2)]
    return times[0] - sent


async def load(stream: Stream) -> tuple[list[float], list[float], list[float]]:
    """Gaps of the users without prompts and while those arrive, and the times to the prompts' first tokens."""
    chance = random.Random(1)
    times: list[list[float]] = []
    users = [asyncio.create_task(user(stream, number, times)) for number in range(USERS)]
    while len(times) < USERS or not all(times):
        check_running(users)
        await asyncio.sleep(0.1)
    await asyncio.sleep(UNDISTURBED_SECONDS)
    began = time.perf_counter()
    arrived = []
    for _ in range(ARRIVALS):
        prompt = " ".join(chance.choices(VOCABULARY.split(), k=PROMPT_WORDS))
        arrived.append(asyncio.create_task(first_token(stream, prompt)))
        await asyncio.sleep(1)
    firsts = await asyncio.gather(*arrived)
    ended = time.perf_counter()
    await asyncio.sleep(UNDISTURBED_SECONDS)
    check_running(users)
    for task in users:
        task.cancel()
    await asyncio.gather(*users, return_exceptions=True)
    pairs = [(a, b) for each in times for a, b in itertools.pairwise(each)]
    settled = max(each[0] for each in times)
    # Both sides of it: the users' texts grow all the time, and with them the steps.
    alone = [b - a for a, b in pairs if (settled < a and b < began) or ended < a]
    during = [b - a for a, b in pairs if began < a and b < ended]
    return alone, during, firsts


async def measure(settings: Mapping[str, str]) -> str:
    """Start a server with some settings; its line of the table."""
    with inflight_server(default_model(), USERS + ARRIVALS, **settings) as server:
        async with server.connect() as stream:
            await first_token(stream, "warm up")
            alone, during, firsts = await load(stream)
    p50, p99 = 1000 * np.median(alone), 1000 * np.percentile(during, 99)
    name = ", ".join(f"{key} {value}" for key, value in settings.items()) or "config.pbtxt"
    return (
        f"| {name} | {p50:.0f} | {1000 * np.percentile(alone, 99):.0f} | {1000 * np.median(during):.0f} | {p99:.0f} "
        f"| {p99 / p50:.1f} | {np.median(firsts):.2f}, {max(firsts):.2f} |"
    )


def main() -> int:
    """Measure all budgets, print a Markdown table and return the exit status."""
    try:
        lines = [asyncio.run(measure(settings)) for settings in BUDGETS]
    except (LauncherError, RuntimeError, InflightError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    print("| Budget | Gap p50 alone (ms) | p99 alone | p50 with prompts | p99 with prompts | p99 to p50 alone ", end="")
    print("| Prompts' first token p50, worst (s) |\n|---|---:|---:|---:|---:|---:|---:|")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
