"""Gives all errors of Anthropic's endpoints its format, whichever part of the gateway has found them."""

import json

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight_gateway.messages_api.document import error_document

PREFIX = "/v1/messages"


class ErrorForm:
    """Rewrites responses with errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            send = _Rewriting(send)
        await self._app(scope, receive, send)


class _Rewriting:
    """Sends a response. If it has an error in JSON, it waits for the body, which is short.

    The answer to a browser that asks whether a page may send a request is plain text.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _has_error(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_error(self._start)

    async def _send_error(self, start: Message) -> None:
        error = json.loads(self._body)["error"]
        document = error_document(start["status"], error["message"], error.get("param"))
        body = json.dumps(document).encode()
        MutableHeaders(scope=start)["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _has_error(start: Message) -> bool:
    return start["status"] >= 400 and MutableHeaders(scope=start).get("content-type") == "application/json"
