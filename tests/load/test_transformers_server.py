"""transformers behind its own server, as `make compare COMPARE=--peers` runs it."""

import asyncio

import pytest

from load_tests.endpoints import Endpoint, openai_endpoint
from scripts.launch.default_model import default_model
from scripts.peers import transformers
from scripts.peers.peer import MODEL
from scripts.peers.transformers_server import BATCHINGS, STATIC

READY_SECONDS = 60.0
LENGTHS = (2, 7, 4)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_requests_together_get_as_many_tokens_as_they_ask_for(batching: str) -> None:
    async def pieces(endpoint: Endpoint, length: int) -> list[int]:
        prompt = range(length, 2 * length)
        return [new async for new in endpoint.ask(prompt, length, tenant="", priority=0, target_ttft=None)]

    async def run(url: str) -> list[list[int]]:
        async with openai_endpoint(url, MODEL) as endpoint:
            return await asyncio.gather(*(pieces(endpoint, length) for length in LENGTHS))

    with transformers.server(batching, default_model(), 2) as server:
        server.wait_ready(READY_SECONDS)
        seen = asyncio.run(run(f"http://{server.http_url}"))
    assert [sum(answer) for answer in seen] == list(LENGTHS)
    # A static batch sends nothing before it is complete. Continuous batching streams.
    assert [len(answer) for answer in seen] == ([1, 1, 1] if batching == STATIC else list(LENGTHS))
