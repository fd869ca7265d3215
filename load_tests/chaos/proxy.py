"""A TCP proxy on loopback that can delay what passes, drop it silently, and cut its connections."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

from scripts.launch.server_process import ADDRESS

_PIECE = 65536
_POLL_SECONDS = 0.1


class Proxy:
    """Forwards connections to a port. Make one with `proxy`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        """Its own port."""
        self.delay = 0.0
        """Seconds by which each piece of data is late."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._num_severed = 0
        self._is_whole = asyncio.Event()
        self._is_whole.set()

    def cut(self) -> None:
        """Break all connections with a reset."""
        for writer in self._writers:
            _reset(writer)

    def sever(self) -> None:
        """Drop all that comes, also the end of a connection. Connections stay open, and never work again."""
        self._is_whole.clear()
        self._num_severed += 1

    def mend(self) -> None:
        """Forward the connections that were opened since `sever`, and later ones."""
        self._is_whole.set()

    async def close(self) -> None:
        """Break all connections, and wait until none is forwarded any more."""
        self.mend()
        while self._connections:
            self.cut()
            await asyncio.wait(self._connections, timeout=_POLL_SECONDS)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        await self._is_whole.wait()
        num_severed = self._num_severed
        try:
            back, forth = await asyncio.open_connection(ADDRESS, self._target)
        except OSError:
            _reset(writer)
            return
        ends = {writer, forth}
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, forth, num_severed))
                group.create_task(self._forward(back, writer, num_severed))
        finally:
            self._writers -= ends
            for end in ends:
                end.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, num_severed: int) -> None:
        """Forward one direction until it ends or is severed. `num_severed`: how often others were before."""
        with contextlib.suppress(OSError):
            while (data := await reader.read(_PIECE)) and num_severed == self._num_severed:
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
            if num_severed < self._num_severed:
                await writer.wait_closed()  # By `cut`.
        # Whichever side ends first, both do.
        if reader.exception() is None:
            writer.close()
        else:
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    # With a linger time of 0 the kernel sends a reset. Otherwise the other side would see an orderly end.
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy(target: int, port: int = 0) -> AsyncIterator[Proxy]:
    """A proxy in front of a port, at `port`, or at any free one."""
    made = Proxy(target)
    server = await asyncio.start_server(made.serve, ADDRESS, port)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.close()
