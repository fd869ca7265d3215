"""The configuration variants for a kind of load, on a real server: the engine follows the settings of each."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.launch.model_repository import model_parameters
from scripts.launch.triton_server import TritonServer
from scripts.reference.tiny_models import SERVED, save_model
from tests.running_server import running_server
from tests.triton.conftest import add_llm
from tests.triton.prometheus import scrape, scrape_when
from tests.unit.traces import ReadTrace, check_trace, read_trace

pytestmark = pytest.mark.slow

VARIANTS = ["latency", "throughput", "mixed"]
# More requests than `latency` and `mixed` run at once, but fewer than `throughput` does.
BURST = 160
# So many that all requests of a burst arrive before the first ends, even where other tests compute.
OUTPUT_TOKENS = 240
BODY = {"input_ids": [5, 6, 7], "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}


@dataclass(frozen=True)
class Variant:
    """A model with the configuration of one variant."""

    server: TritonServer
    name: str
    trace_file: Path

    @property
    def settings(self) -> dict[str, int]:
        """The settings with a number as their value."""
        parameters = model_parameters("llm", f"configs/{self.name}.pbtxt")
        return {name: int(value) for name, value in parameters.items() if value.isdecimal()}

    def metric(self, name: str, **labels: str) -> float:
        return scrape(self.server).get(name, model=self.name, **labels)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """One server with a model per variant, so that they all import torch at the same time.

    The model is tiny and has no tokenizer.
    """
    folder = tmp_path_factory.mktemp("llama")
    save_model(SERVED["llama"].config, folder)
    for name in VARIANTS:
        own = {"model": str(folder), "kv_cache_tokens": "65536", "trace_file": str(folder / f"{name}.json")}
        add_llm(folder / "models", name, f"configs/{name}.pbtxt", own)
    with running_server(folder / "models", VARIANTS) as running:
        yield running


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, server: TritonServer) -> Variant:
    return Variant(server, request.param, server.repository.parent / f"{request.param}.json")


@asynccontextmanager
async def burst(
    variant: Variant, count: int = BURST
) -> AsyncIterator[tuple[httpx.AsyncClient, list[asyncio.Task[httpx.Response]]]]:
    """Send many requests of one tenant at once. At the end of the block it waits for all answers."""
    url = f"http://{variant.server.http_url}/v2/models/{variant.name}/"
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits()) as client:
        tasks = [asyncio.create_task(generate(client, tenant="many", priority=3)) for _ in range(count)]
        yield client, tasks
        await asyncio.gather(*tasks)


async def generate(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("generate", json={**BODY, **fields})


def finished_trace(variant: Variant) -> ReadTrace:
    """Return the trace after all requests have ended."""
    scrape_when(variant.server, lambda found: found.get("num_requests_running", model=variant.name) == 0)
    return read_trace(variant.trace_file)


def test_a_burst_is_served_as_the_variant_says(variant: Variant) -> None:
    async def run() -> Counter[int]:
        async with burst(variant) as (_, tasks):
            return Counter([(await task).status_code for task in tasks])

    statuses = asyncio.run(run())
    trace = finished_trace(variant)
    check_trace(trace, computed_tokens=statuses[200] * (3 + OUTPUT_TOKENS - 1))
    assert {span.args["tenant"] for span in trace.requests.values()} == {"many"}
    max_running, queued = variant.settings["max_num_seqs"], variant.settings.get("max_queue_size", 2048)
    assert {step["args"]["budget"] for step in trace.steps} == {variant.settings["max_num_batched_tokens"]}
    assert max(counter["running"] for counter in trace.counters["requests"]) == min(max_running, BURST)
    # The generate endpoints answer 400 to every error.
    assert (statuses[400] > 0) == (max_running + queued < BURST)
    assert variant.metric("request_refused_total", reason="overload") == statuses[400]


@pytest.mark.parametrize("variant", ["mixed"], indirect=True)
def test_an_urgent_request_overtakes_where_there_are_priorities(variant: Variant) -> None:
    async def run() -> None:
        # Three batches of requests: when the first requests are done, one batch is running and another is waiting.
        async with burst(variant, 3 * variant.settings["max_num_seqs"]) as (client, tasks):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert (await generate(client, tenant="one", priority=1)).status_code == 200

    asyncio.run(run())
    requests = finished_trace(variant).requests.values()
    (urgent,) = [span for span in requests if span.args["tenant"] == "one"]
    # It began before other requests that had arrived earlier.
    assert any(other.begin < urgent.begin and other.inner[0].end > urgent.inner[0].end for other in requests)
