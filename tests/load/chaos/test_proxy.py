"""The proxy passes data on, late if it shall, and cuts connections."""

import asyncio
import time

import pytest

from load_tests.chaos.proxy import proxy
from scripts.launch.server_process import ADDRESS

DELAY = 0.2


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def _scenario() -> None:
    server = await asyncio.start_server(_echo, ADDRESS, 0)
    async with server, proxy(server.sockets[0].getsockname()[1]) as through:
        reader, writer = await asyncio.open_connection(ADDRESS, through.port)
        writer.write(b"word")
        assert await reader.readexactly(4) == b"word"

        through.delay = DELAY
        begun = time.monotonic()
        writer.write(b"late")
        assert await reader.readexactly(4) == b"late"
        assert time.monotonic() - begun >= 2 * DELAY  # On the way there, and on the way back.

        through.cut()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()


def test_data_passes_late_data_is_late_and_a_cut_is_a_reset() -> None:
    asyncio.run(asyncio.wait_for(_scenario(), 20))


async def _no_target() -> None:
    probe = await asyncio.start_server(_echo, ADDRESS, 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    await probe.wait_closed()
    async with proxy(port) as through:
        reader, writer = await asyncio.open_connection(ADDRESS, through.port)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


def test_without_a_server_behind_it_a_connection_is_reset() -> None:
    asyncio.run(asyncio.wait_for(_no_target(), 20))


async def _severed() -> None:
    server = await asyncio.start_server(_echo, ADDRESS, 0)
    async with server, proxy(server.sockets[0].getsockname()[1]) as through:
        reader, writer = await asyncio.open_connection(ADDRESS, through.port)
        writer.write(b"word")
        assert await reader.readexactly(4) == b"word"

        through.sever()
        writer.write(b"lost")
        later, other = await asyncio.open_connection(ADDRESS, through.port)
        other.write(b"word")
        for silent in (reader, later):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(silent.read(1), DELAY)

        through.mend()
        assert await later.readexactly(4) == b"word"
        writer.write(b"lost")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), DELAY)

        through.cut()
        for ended in (reader, later):
            with pytest.raises(ConnectionResetError):
                await ended.read(1)
        for end in (writer, other):
            end.close()


def test_a_severed_connection_is_silent_and_stays_so() -> None:
    asyncio.run(asyncio.wait_for(_severed(), 20))
