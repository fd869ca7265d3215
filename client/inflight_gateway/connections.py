"""The gateway's connections: how many there can be, and which are closed.

Those on which nothing is asked in time are closed, those whose clients do not read, and those of viewers at the end.
"""

import asyncio
import contextlib
import errno
import logging
import math
import resource
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from inflight_gateway.ui.events import Viewers

logger = logging.getLogger(__name__)

_WARNING_SECONDS = 60.0


def allow_many_connections() -> None:
    """Let this process open as many files as the system permits. Each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # macOS names no number and takes none; there the limit stays.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class RefusedConnections:
    """Handles faults of the event loop: warns once a minute while no connection can be taken, and logs all others.

    For one such fault, asyncio writes as many tracebacks as connections may wait, and it tries again each second.
    """

    def __init__(self) -> None:
        self._quiet_until = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """See `loop.set_exception_handler`."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + _WARNING_SECONDS
            logger.warning("new connections must wait: %s; each is an open file, so raise `ulimit -Hn`", error)


class GatewayServer(uvicorn.Server):
    """Ends the streams of viewers when it is asked to end. It lets other streams finish; those never would."""

    def __init__(self, config: uvicorn.Config, viewers: Viewers) -> None:
        super().__init__(config)
        self._viewers = viewers

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Called once, in the event loop."""
        asyncio.get_running_loop().set_exception_handler(RefusedConnections())
        await super().serve(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called after SIGTERM or Ctrl-C."""
        self._viewers.close()
        await super().shutdown(sockets)


class TimedConnection(H11Protocol):
    """An HTTP connection that is closed if for `timeout_keep_alive` seconds no whole head of a request arrives, or the
    client does not read its answer.

    The server's own time limit begins after the first answer, and ends with the next byte. So connections that send
    nothing, or a byte now and then, would stay for ever, until the gateway has no more files for others. So would those
    of clients that ask, also without a key, and never read.
    """

    _unread: asyncio.TimerHandle | None = None
    """When to see next whether the client reads."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called when a client has connected."""
        super().connection_made(transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        """Called with what the client sends."""
        super().data_received(data)
        if self._is_answering:
            self._waiting.cancel()

    def on_response_complete(self) -> None:
        """Called when an answer has been sent."""
        super().on_response_complete()
        if not self._is_answering:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called at the end, however it came."""
        super().connection_lost(exc)
        # Timers would keep all that belongs to the connection in memory.
        self._waiting.cancel()
        self._stop_watching()
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        """Called when the client has not read so much that the answer must wait."""
        super().pause_writing()
        self._watch_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Called when the client has read most of that."""
        super().resume_writing()
        self._stop_watching()

    def _watch_reading(self, unread: int) -> None:
        self._unread = self.loop.call_later(self.timeout_keep_alive, self._check_reading, unread)

    def _check_reading(self, unread: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < unread:
            self._watch_reading(left)
        else:
            self.transport.abort()  # `close` would wait until all is read.

    def _stop_watching(self) -> None:
        if self._unread is not None:
            self._unread.cancel()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_request(self) -> None:
        # `close` would wait for a client that has not read the end of the last answer.
        self._waiting = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)
