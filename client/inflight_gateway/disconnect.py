"""Cancels the requests of clients that have disconnected, so that the engine computes nothing for them."""

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight_gateway.limits import is_generation
from inflight_gateway.metrics import OUTCOME

logger = logging.getLogger(__name__)

EVENTS = "/ui/events"
"""The only stream that is not asked for by POST."""

# nginx's status for a client that disconnected before the end of the answer.
_LEFT = 499
# Additional time, after the time limit of the answer, for a client that reads slowly.
_READING_SECONDS = 5.0


class CancelOnDisconnect:
    """Cancels a request, here and on the server, if its client disconnects or does not read the answer.

    This applies to streams and to whole answers. The framework itself notices a disconnect only when it writes.
    """

    def __init__(self, app: ASGIApp, request_timeout: float) -> None:
        self._app = app
        self._longest = request_timeout + _READING_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if not is_generation(scope) and scope.get("path") != EVENTS:
            await self._app(scope, receive, send)
            return
        connection = _Connection(receive, send)
        handling = asyncio.ensure_future(self._app(scope, connection.receive, connection.send))
        leaving = asyncio.create_task(connection.left())
        try:
            await asyncio.wait({handling, leaving}, timeout=self._longest, return_when=asyncio.FIRST_COMPLETED)
            if not handling.done() and not connection.answered:
                scope[OUTCOME] = _LEFT
                logger.info("%s: the client disconnected before the end, or does not read", scope["path"])
                handling.cancel()
                await asyncio.wait({handling})
                return
            await handling
        finally:
            handling.cancel()
            leaving.cancel()


class _Connection:
    """Both directions of one request."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._body_read = asyncio.Event()
        self.answered = False

    async def receive(self) -> Message:
        """Return the next part of the body. The application does not read beyond the body."""
        message = await self._receive()
        if not message.get("more_body", False):
            self._body_read.set()
        return message

    async def send(self, message: Message) -> None:
        """Pass on a part of the response."""
        self.answered = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def left(self) -> None:
        """Return when the client has disconnected, or has received the whole answer."""
        await self._body_read.wait()
        await self._receive()
