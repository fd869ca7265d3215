"""Limits of a gateway: requests at once, bytes of a body, and the time in which a body must arrive."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight_gateway.errors import ApiError, overloaded

# Long enough for the largest body on a slow line. The request counts as running during this time.
_BODY_SECONDS = 30.0


def is_generation(scope: Scope) -> bool:
    """Whether a request can reach the model: all such requests are POST."""
    return bool(scope["type"] == "http" and scope["method"] == "POST")


class ConcurrencyLimit:
    """Answers 429 to generation requests beyond the limit. Other requests cost too little to need one."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if not is_generation(scope):
            await self._app(scope, receive, send)
        elif self._running >= self._limit:
            error = overloaded(f"{self._running} requests are running; at most {self._limit} may")
            await error.response()(scope, receive, send)
        else:
            self._running += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._running -= 1


class BodyLimit:
    """Answers 413 to bodies over the limit, and 408 to bodies that take too long to arrive."""

    def __init__(self, app: ASGIApp, limit: int, request_timeout: float) -> None:
        self._app = app
        self._limit = limit
        self._seconds = min(_BODY_SECONDS, request_timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if not is_generation(scope):
            await self._app(scope, receive, send)
            return
        ends = asyncio.get_running_loop().time() + self._seconds
        taken = 0
        complete = False

        async def bounded() -> Message:
            nonlocal taken, complete
            if complete:  # The next message says that the client has disconnected. It has no time limit.
                return await receive()
            try:
                async with asyncio.timeout_at(ends):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, "slow_body", f"the body did not arrive within {self._seconds:g} s") from None
            taken += len(message.get("body", b""))
            if taken > self._limit:
                text = f"the body has over {self._limit} bytes; it must have at most {self._limit}"
                raise ApiError(413, "body_too_large", text)
            complete = not message.get("more_body", False)
            return message

        await self._app(scope, bounded, send)
