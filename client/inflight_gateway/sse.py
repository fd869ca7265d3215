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
"""How OpenAI's streams end, unless they fail."""

_EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk of the answer in JSON, an error, or [DONE]."}},
    "required": ["data"],
}
DOCUMENTATION = {"text/event-stream": {"schema": _EVENT}}
"""A stream in the OpenAPI page's words: its events."""

# Proxies would collect events otherwise; nginx wants the second.
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(document: Mapping[str, object]) -> bytes:
    """A document as an event."""
    return b"data: %b\n\n" % json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


class EventStream(StreamingResponse):
    """A response of events as they come; an error of the server becomes the last of them.

    Unlike the framework's it closes the source of events however it ends; `CancelOnDisconnect` looks after clients
    that leave.
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
