"""Names requests, so that clients, the server's trace and spans, and `inflight top` have one name for each."""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = "inflight_request_id"
"""The key of the scope that holds the name of a request."""
_HEADERS = ("x-request-id", "request-id")
"""OpenAI's clients read the first one from an answer, Anthropic's the second one."""
_USABLE = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """Names each request by its header X-Request-Id, or else by a random id, and says so in the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(_HEADERS[0], "")
        name = scope[REQUEST_ID] = given if _USABLE.fullmatch(given) else uuid.uuid4().hex

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for header in _HEADERS:
                    headers[header] = name
            await send(message)

        await self._app(scope, receive, named)
