"""transformers behind its own server, as `make compare COMPARE=--peers` runs it."""

import asyncio
from functools import partial

import pytest

from load_tests.endpoints import Endpoint, openai_endpoint
from load_tests.prompts import PlannedRequest
from scripts.launch.default_model import default_model
from scripts.peers import transformers
from scripts.peers.peer import MODEL
from scripts.peers.transformers_server import BATCHINGS, STATIC

READY_SECONDS = 60.0
LENGTHS = (2, 7, 4, 5)
TEMPERATURES = (0.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_requests_together_get_as_many_tokens_as_they_ask_for(batching: str) -> None:
    async def pieces(endpoint: Endpoint, length: int, temperature: float) -> list[int]:
        request = PlannedRequest(0.0, length, length, length, temperature=temperature, top_p=0.95)
        return [new async for new in endpoint.ask(request, range(length, 2 * length))]

    async def run(url: str) -> list[list[int]]:
        async with openai_endpoint(url, MODEL) as endpoint:
            return await asyncio.gather(*map(partial(pieces, endpoint), LENGTHS, TEMPERATURES))

    with transformers.server(batching, default_model(), 2) as server:
        server.wait_ready(READY_SECONDS)
        seen = asyncio.run(run(f"http://{server.http_url}"))
    assert [sum(answer) for answer in seen] == list(LENGTHS)
    # A static batch sends nothing before it is complete. Continuous batching streams.
    assert [len(answer) for answer in seen] == ([1, 1, 1, 1] if batching == STATIC else list(LENGTHS))
