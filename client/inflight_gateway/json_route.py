"""Endpoints that refuse a body which could not be written again."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from inflight_gateway.errors import ApiError
from inflight_gateway.strict_json import Unwritable, read_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        """Return the body. Raises ApiError for what cannot be written again, and ValueError for what is not JSON."""
        if (encoding := self.headers.get("content-encoding", "identity")).lower() != "identity":
            text = f"Content-Encoding is {encoding!a}; the body must not be compressed"
            raise ApiError(415, "unsupported_encoding", text)
        body = await self.body()
        try:
            written = body.decode(json.detect_encoding(body))
        except UnicodeDecodeError as error:
            raise ApiError(400, "bad_request", f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
        try:
            return read_json(written)
        except Unwritable as error:
            text = f"{error.field or 'the body'} {error.what}"
            raise ApiError(400, "invalid_value", text, param=error.field or None) from error


class JsonRoute(APIRoute):
    """An endpoint whose body `read_json` reads."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json
