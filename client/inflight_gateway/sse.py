"""Server-sent events."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from inflight_client import InflightError
from inflight_gateway.errors import api_error
from inflight_gateway.metrics import OUTCOME

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


class EventStream(StreamingResponse):
    """A response that sends events as they arrive. An error of the server becomes the last event.

    Unlike the framework's class, it always closes the source of events. It does not watch for disconnected clients,
    because `CancelOnDisconnect` does.
    """

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__((), headers=_HEADERS, media_type="text/event-stream")
        self._first, self._rest = first, rest

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
            yield event(error.document())
