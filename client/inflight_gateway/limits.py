"""Limits of a gateway: requests and samples at once, bytes of bodies, and the time in which a body must arrive."""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight_gateway.errors import ApiError, overloaded

# Long enough for the largest body on a slow line. The request counts as running during this time.
_BODY_SECONDS = 30.0
_SAMPLES = "inflight_samples"


def is_generation(scope: Scope) -> bool:
    """Whether a request can reach the model: all such requests are POST."""
    return bool(scope["type"] == "http" and scope["method"] == "POST")


class ConcurrencyLimit:
    """Answers 429 to generation requests beyond the limit. Other requests cost too little to need one.

    One request can ask for many samples, which are known when its body has been read; see `take_samples`.
    """

    def __init__(self, app: ASGIApp, limit: int, max_samples: int) -> None:
        self._app = app
        self._limit = limit
        self._running = 0
        self._samples = _Samples(max_samples)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if not is_generation(scope):
            await self._app(scope, receive, send)
        elif self._running >= self._limit:
            error = overloaded(f"{self._running} requests are running; at most {self._limit} may")
            await error.response()(scope, receive, send)
        else:
            self._running += 1
            scope[_SAMPLES] = reservation = _Reservation(self._samples)
            try:
                await self._app(scope, receive, send)
            finally:
                self._running -= 1
                self._samples.running -= reservation.count


@dataclass
class _Samples:
    """The samples that the gateway's requests are getting."""

    limit: int
    running: int = 0


@dataclass
class _Reservation:
    """The samples of one request."""

    samples: _Samples
    count: int = 0


def take_samples(scope: Scope, count: int) -> None:
    """Count the samples of a request until it ends.

    Raises:
        ApiError: 429 if so many samples are too many beside those of other requests, 400 if they always are.
    """
    reservation: _Reservation = scope[_SAMPLES]
    samples = reservation.samples
    if count > samples.limit:
        text = f"the prompts times n are {count} samples; they must be at most {samples.limit}"
        raise ApiError(400, "invalid_value", text, param="n")
    if samples.running + count > samples.limit:
        raise overloaded(
            f"{samples.running} samples are being generated and {count} are asked for; at most {samples.limit} may be"
        )
    samples.running += count
    reservation.count = count


class BodyLimit:
    """Answers 413 to bodies over the limit, and 408 to bodies that take too long to arrive.

    Bodies are kept until their requests end. If all of them together are over their limit, it answers 429.
    """

    def __init__(self, app: ASGIApp, limit: int, total_limit: int, request_timeout: float) -> None:
        self._app = app
        self._limit = limit
        self._total_limit = total_limit
        self._total = 0
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
            size = len(message.get("body", b""))
            taken += size
            self._total += size
            if taken > self._limit:
                text = f"the body has over {self._limit} bytes; it must have at most {self._limit}"
                raise ApiError(413, "body_too_large", text)
            if self._total > self._total_limit:
                raise overloaded(f"the bodies of all requests have over {self._total_limit} bytes; no more are kept")
            complete = not message.get("more_body", False)
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._total -= taken
