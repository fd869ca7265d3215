"""Server-sent events."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from inflight_client import InflightError
from inflight_gateway.errors import ApiError, api_error
from inflight_gateway.metrics import OUTCOME
from inflight_gateway.tracing import note_failure

ErrorEvent: TypeAlias = Callable[[ApiError], bytes]
"""Encodes an error as the last event of a stream."""

DONE = b"data: [DONE]\n\n"
"""The last event of OpenAI's streams. A stream that fails does not have it."""

_EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk of the answer as JSON, an error, or [DONE]."}},
    "required": ["data"],
}
DOCUMENTATION = {"text/event-stream": {"schema": _EVENT}}
"""Description of a stream's events for the OpenAPI page."""

KEEP_ALIVE_SECONDS = 15.0
"""The interval that the standard of server-sent events recommends."""
_COMMENT = b": the answer is on its way\n\n"

# Without these headers proxies buffer events. The second one is for nginx.
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(document: Mapping[str, object]) -> bytes:
    """Encode a JSON document as an event."""
    return b"data: %b\n\n" % json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def named_event(name: str, document: Mapping[str, object]) -> bytes:
    """Encode a JSON document as an event of a type."""
    return b"event: %b\n%b" % (name.encode(), event(document))


def error_as_event(error: ApiError) -> bytes:
    """Encode an error as chats and completions have it."""
    return event(error.document())


class EventStream(StreamingResponse):
    """A response that sends events as they arrive. An error of the server becomes the last event.

    Proxies end connections on which nothing moves, many after a minute. A long prompt takes longer to compute, and a
    preempted request may wait. So where no event comes for `KEEP_ALIVE_SECONDS`, a comment is sent, which clients
    ignore.

    Unlike the framework's class, it always closes the source of events. It does not watch for disconnected clients,
    because `CancelOnDisconnect` does.
    """

    def __init__(
        self, first: "asyncio.Future[bytes]", rest: AsyncGenerator[bytes, None], error_event: ErrorEvent
    ) -> None:
        """`first` becomes the first event of `rest`."""
        super().__init__((), headers=_HEADERS, media_type="text/event-stream")
        self._first, self._rest, self._error_event = first, rest, error_event
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        self.body_iterator = self._events(scope)
        self._sent_at = time.monotonic()
        async with aclosing(self._rest):
            keeping = asyncio.create_task(self._keep_alive(send))
            try:
                await self.stream_response(send)
            finally:
                ending: list[asyncio.Future[Any]] = [keeping, self._first]
                for future in ending:
                    future.cancel()
                await asyncio.wait(ending)

    async def _events(self, scope: Scope) -> AsyncGenerator[bytes, None]:
        try:
            yield await self._first
            async for one in self._rest:
                self._sent_at = time.monotonic()
                yield one
        except (InflightError, ApiError) as failure:
            error = failure if isinstance(failure, ApiError) else api_error(failure)
            scope[OUTCOME] = error.status_code
            note_failure(error)
            yield self._error_event(error)

    async def _keep_alive(self, send: Send) -> None:
        wait = KEEP_ALIVE_SECONDS
        while True:
            await asyncio.sleep(wait)
            silent = time.monotonic() - self._sent_at
            if silent >= KEEP_ALIVE_SECONDS:
                self._sent_at, silent = time.monotonic(), 0.0
                await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
            wait = KEEP_ALIVE_SECONDS - silent
