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
        body = await self.body()
        try:
            return read_json(body.decode(json.detect_encoding(body)))
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
