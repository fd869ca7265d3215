"""An AsyncClient belongs to the event loop in which it was made, and says so elsewhere."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inflight_client import AsyncClient

NOBODY = "127.0.0.1:1"
CALLS: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "generate": lambda client: client.generate("Once"),
    "stream": lambda client: anext(aiter(client.stream("Once"))),
    "embed": lambda client: client.embed("Once"),
    "generate_many": lambda client: client.generate_many(["Once"]),
    "is_ready": AsyncClient.is_ready,
    "server_info": AsyncClient.server_info,
    "model_info": AsyncClient.model_info,
    "metrics": AsyncClient.metrics,
    "is_serving": AsyncClient.is_serving,
    "unfinished_requests": AsyncClient.unfinished_requests,
    "close": AsyncClient.close,
}


async def make(url: str) -> AsyncClient:
    return AsyncClient(url)


async def use(client: AsyncClient, call: Callable[[AsyncClient], Awaitable[object]]) -> object:
    return await call(client)


@pytest.mark.parametrize("url", [NOBODY, f"http://{NOBODY}", f"{NOBODY},127.0.0.1:2"], ids=["grpc", "http", "several"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_in_another_event_loop_says_where_the_client_belongs(
    url: str, call: Callable[[AsyncClient], Awaitable[object]]
) -> None:
    client = asyncio.run(make(url))
    with pytest.raises(RuntimeError, match="made in another event loop"):
        asyncio.run(use(client, call))


@pytest.mark.parametrize("url", [NOBODY, f"http://{NOBODY}"], ids=["grpc", "http"])
def test_without_an_event_loop_there_is_no_client(url: str) -> None:
    with pytest.raises(RuntimeError, match="AsyncClient needs a running event loop"):
        AsyncClient(url)


def test_the_counts_of_prompts_elsewhere_can_be_read_from_any_thread() -> None:
    assert asyncio.run(make(NOBODY)).prefills is None
