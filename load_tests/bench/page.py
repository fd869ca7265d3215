"""`python -m load_tests.bench.page`: what the gateway's page costs while somebody watches it, and how often it changes.

Users send the same requests through a gateway, in turns with the page open in Chromium and without it. Model, gateway,
users and browser share the cores.
"""

import argparse
import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from playwright.async_api import Error, async_playwright

from inflight_client import InflightError
from load_tests.bench.gateway import gateway
from load_tests.bench.requests import bench_requests, check_complete, warm_up_requests
from load_tests.endpoints import openai_endpoint
from load_tests.generator import closed_loop
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.served_model import triton_server
from scripts.launch.signals import end_like_ctrl_c
from scripts.peers.peer import MODEL

USERS = 30
ROUNDS = 6
REQUESTS = 4 * USERS
WARM_UP_USERS = 8

_NOTE_CHANGES = """() => {
    window.changes = [];
    const note = () => window.changes.push(performance.now() / 1000);
    new MutationObserver(note).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


@dataclass
class Changes:
    """When the page changed, in seconds."""

    times: list[float]

    @property
    def per_second(self) -> float:
        """Mean number of changes."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])

    @property
    def longest_gap(self) -> float:
        """The longest time without a change, in seconds."""
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))


@asynccontextmanager
async def watched(url: str, changes: list[Changes]) -> AsyncIterator[None]:
    """Open the page in a browser of its own. At the end, add when it changed."""
    async with (
        async_playwright() as playwright,
        await playwright.chromium.launch(executable_path=shutil.which("chromium")) as browser,
    ):
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(f"{url}/ui")
        # As an expression, not a function, it would be evaluated anew in the page, whose policy forbids that.
        await page.wait_for_function("() => document.querySelector('#state').textContent === 'live'")
        await page.evaluate(_NOTE_CHANGES)
        yield
        changes.append(Changes(await page.evaluate("window.changes")))


async def measure(url: str) -> None:
    """Print the throughput of each round, and at the end the ratio."""
    async with openai_endpoint(url, MODEL) as endpoint:

        async def throughput(seed: int) -> float:
            requests = bench_requests(REQUESTS, seed=seed)
            run = await closed_loop(endpoint, USERS, iter(requests), count=len(requests))
            return check_complete(run).throughput

        await closed_loop(endpoint, WARM_UP_USERS, iter(warm_up_requests(WARM_UP_USERS)), count=WARM_UP_USERS)
        sums = {True: 0.0, False: 0.0}
        changes: list[Changes] = []
        print("| Round | Tokens/s without the page | With it | Ratio | Changes of the page per second | Longest gap |")
        print("|---|---:|---:|---:|---:|---:|")
        for number in range(ROUNDS):
            rates = {}
            for is_watched in (number % 2 == 0, number % 2 == 1):
                if is_watched:
                    async with watched(url, changes):
                        rates[True] = await throughput(number)
                else:
                    rates[False] = await throughput(number)
                sums[is_watched] += rates[is_watched]
            last = changes[-1]
            print(
                f"| {number + 1} | {rates[False]:.0f} | {rates[True]:.0f} | {rates[True] / rates[False]:.3f} "
                f"| {last.per_second:.1f} | {last.longest_gap:.2f} s |",
                flush=True,
            )
    print(f"\nratio of all rounds: {sums[True] / sums[False]:.3f}")


def main() -> int:
    """Run the measurement and return the exit status. If it is 1, a line on standard error says why."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    settings = {"max_num_seqs": str(USERS + 2), "enable_prefix_caching": "false"}
    end_like_ctrl_c()
    try:
        with triton_server(default_model(), **settings) as server, gateway(server) as gate:
            asyncio.run(measure(f"http://{gate.http_url}"))
    except KeyboardInterrupt:
        return 130
    except (LauncherError, RuntimeError, OSError, InflightError, Error) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
