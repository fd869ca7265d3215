"""The gateway's connections: those on which nothing is asked in time are closed, and those of viewers at the end."""

import asyncio
import socket

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from inflight_gateway.ui.events import Viewers


class GatewayServer(uvicorn.Server):
    """Ends the streams of viewers when it is asked to end. It lets other streams finish; those never would."""

    def __init__(self, config: uvicorn.Config, viewers: Viewers) -> None:
        super().__init__(config)
        self._viewers = viewers

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called after SIGTERM or Ctrl-C."""
        self._viewers.close()
        await super().shutdown(sockets)


class TimedConnection(H11Protocol):
    """An HTTP connection that is closed if no whole head of a request arrives within `timeout_keep_alive` seconds.

    The server's own time limit begins after the first answer, and ends with the next byte. So connections that send
    nothing, or a byte now and then, would stay for ever, until the gateway has no more files for others.
    """

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
        self._unset_keepalive_if_required()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_request(self) -> None:
        self._waiting = self.loop.call_later(self.timeout_keep_alive, self.transport.close)
