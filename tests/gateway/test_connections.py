"""A connection on which nothing is asked is closed; one that waits for its answer is not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from inflight_gateway.connections import TimedConnection
from scripts.launch.server_process import ADDRESS, fill_ports

LIMIT_SECONDS = 1
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _slow_app(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(2 * LIMIT_SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[int]:
    (port,) = fill_ports(None)
    config = uvicorn.Config(
        _slow_app, host=ADDRESS, port=port, http=TimedConnection, timeout_keep_alive=LIMIT_SECONDS, lifespan="off"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        await serving


async def _answer(sent: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    async with _server() as port:
        reader, writer = await asyncio.open_connection(ADDRESS, port)
        writer.write(sent)
        answer = await reader.read()
        writer.close()
        return answer


@pytest.mark.parametrize("sent", [b"", REQUEST[:20]])
def test_a_connection_without_a_whole_request_is_closed(sent: bytes) -> None:
    assert asyncio.run(asyncio.wait_for(_answer(sent), 20)) == b""


def test_a_request_that_takes_longer_is_answered_before_the_connection_is_closed() -> None:
    assert asyncio.run(asyncio.wait_for(_answer(REQUEST), 20)).endswith(b"\r\n\r\nok")
