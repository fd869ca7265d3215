"""Triton's own queue in front of the engine."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from scripts.launch.triton_server import TritonServer
from tests.triton.plugs import RUNNING, SHORT, Ask, Plugs, first_tokens, plugged, refusals, start, wait_for
from tests.triton.prometheus import at_rest, scrape_when
from tests.triton.wire import Answer

TRITONS_QUEUE = 100
TRITONS_BATCH = 16


@pytest.fixture(scope="module")
def behind_tritons_queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    parameters = {"max_num_seqs": f"{RUNNING}", "max_inflight_requests": f"{RUNNING}"}
    folder = tmp_path_factory.mktemp("tritons_queue")
    with start(folder, parameters, "--model-config-name=triton_queue") as running:
        yield running


async def pending(server: TritonServer) -> int:
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{server.metrics_port}/metrics")).text
    (line,) = (line for line in text.splitlines() if line.startswith('nv_inference_pending_request_count{model="llm"'))
    return int(float(line.split()[-1]))


def test_the_policies_of_tritons_queue_bite(behind_tritons_queue: TritonServer) -> None:
    async def overload(send: Ask, plugs: Plugs) -> tuple[list[Answer], Answer, Answer, int]:
        short = {"text_input": "One two", "stream": True, "max_tokens": 2}
        tasks = [asyncio.create_task(send(short)) for _ in range(TRITONS_QUEUE + 30)]
        await wait_for(tasks, 30)
        depth = await pending(behind_tritons_queue)
        # The queue of the default level is full. The queue of the highest level has room.
        high = asyncio.create_task(send(short, priority=1))
        timed_out = await send(short, priority=1, timeout=50_000)
        plugs.pull()
        return await asyncio.gather(*tasks), await high, timed_out, depth

    answers, high, timed_out, depth = plugged(behind_tritons_queue, overload, batched=True)
    assert len(refusals(answers)) == 30
    assert all("Exceeds maximum queue size" in error for error in refusals(answers))
    assert depth == TRITONS_QUEUE
    assert "Request timeout expired" in timed_out.error
    overtaken = sum(time > high.times[0] for time in first_tokens(answers))
    assert overtaken >= TRITONS_QUEUE - TRITONS_BATCH


def test_requests_cancelled_in_tritons_queue_cost_no_slot(behind_tritons_queue: TritonServer) -> None:
    """More requests are cancelled than the engine has slots. Afterwards all slots are still usable."""
    count = 6 * RUNNING

    async def cancel_half(send: Ask, plugs: Plugs) -> list[Answer]:
        tasks = [asyncio.create_task(send(SHORT)) for _ in range(count)]
        async with asyncio.timeout(20):
            while await pending(behind_tritons_queue) < count:
                await asyncio.sleep(0.02)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks[::2], return_exceptions=True)
        plugs.pull()
        return await asyncio.gather(*tasks[1::2])

    async def all_run(send: Ask, plugs: Plugs) -> bool:
        return plugs.all_run()

    answers = plugged(behind_tritons_queue, cancel_half, batched=True)
    assert refusals(answers) == []
    assert len({answer.text for answer in answers}) == 1
    scrape_when(behind_tritons_queue, at_rest)
    assert plugged(behind_tritons_queue, all_run, batched=True)
    scrape_when(behind_tritons_queue, at_rest)
