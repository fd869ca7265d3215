"""Server-sent events."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TypeAlias

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

    Unlike the framework's class, it always closes the source of events. It does not watch for disconnected clients,
    because `CancelOnDisconnect` does.
    """

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], error_event: ErrorEvent) -> None:
        super().__init__((), headers=_HEADERS, media_type="text/event-stream")
        self._first, self._rest, self._error_event = first, rest, error_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        self.body_iterator = self._events(scope)
        async with aclosing(self._rest):
            await self.stream_response(send)

    async def _events(self, scope: Scope) -> AsyncGenerator[bytes, None]:
        yield self._first
        try:
            async for one in self._rest:
                yield one
        except InflightError as failure:
            error = api_error(failure)
            scope[OUTCOME] = error.status_code
            note_failure(error)
            yield self._error_event(error)
