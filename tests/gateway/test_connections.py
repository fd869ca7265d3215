"""There can be many connections. One on which nothing is asked is closed; one that waits for its answer is not."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from inflight_gateway.connections import RefusedConnections, TimedConnection, allow_many_connections
from scripts.launch.server_process import ADDRESS, fill_ports

LIMIT_SECONDS = 1
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _slow_app(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(2 * LIMIT_SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def _server(app: ASGIApp = _slow_app) -> AsyncIterator[int]:
    (port,) = fill_ports(None)
    config = uvicorn.Config(
        app, host=ADDRESS, port=port, http=TimedConnection, timeout_keep_alive=LIMIT_SECONDS, lifespan="off"
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


def test_a_connection_whose_client_does_not_read_is_closed() -> None:
    async def ask() -> None:
        sent = asyncio.Event()

        async def large_app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(2):  # The second one waits until the first one is read.
                await send({"type": "http.response.body", "body": bytes(2**26), "more_body": True})
            sent.set()

        async with _server(large_app) as port:
            with socket.create_connection((ADDRESS, port)) as client:
                client.sendall(REQUEST)
                await sent.wait()

    asyncio.run(asyncio.wait_for(ask(), 20))


def test_a_connection_whose_client_reads_slowly_stays_open() -> None:
    loop, transport = Mock(), Mock()
    transport.get_extra_info.return_value = None
    config = uvicorn.Config(_slow_app, timeout_keep_alive=LIMIT_SECONDS)
    connection = TimedConnection(config, ServerState(), {}, _loop=loop)
    connection.connection_made(transport)
    transport.get_write_buffer_size.side_effect = [100_000, 99_999, 99_998, 99_998]
    connection.pause_writing()
    for _ in range(3):
        assert not transport.abort.called
        _, check, unread = loop.call_later.call_args.args
        check(unread)
    assert transport.abort.called
    connection.connection_lost(None)


def test_the_limit_of_open_files_is_as_high_as_the_system_permits() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
    try:
        allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_that_find_no_free_file_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio reports them thousands of times a second."""
    handler, loop = RefusedConnections(), asyncio.new_event_loop()
    for number in (errno.EMFILE, errno.EMFILE, errno.EPERM, errno.ENFILE):
        handler(loop, {"message": "a fault of the loop", "exception": OSError(number, os.strerror(number))})
    loop.close()
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (
            logging.WARNING,
            "new connections must wait: [Errno 24] Too many open files; each is an open file, so raise `ulimit -Hn`",
        ),
        (logging.ERROR, "a fault of the loop"),
    ]
