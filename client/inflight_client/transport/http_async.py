"""HTTP for asyncio: a pool of connections, one for each running request."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, TypeVar

import httpx
from httpx_sse import EventSource

from inflight_client.errors import (
    DeadlineExceeded,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    client_closed,
)
from inflight_client.options import Options, TimeLimits
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport import http_wire
from inflight_client.transport.async_failure_detector import AsyncFailureDetector

_PROBE_SECONDS = 5.0
_CANCEL_SECONDS = 1.0

_T = TypeVar("_T")


class AsyncHttpConnection:
    """See `AsyncConnection`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        transport = httpx.AsyncHTTPTransport(
            verify=http_wire.ssl_context(options),
            limits=http_wire.LIMITS,
            socket_options=http_wire.socket_options(options),
            trust_env=False,
        )
        self.client = httpx.AsyncClient(
            base_url=http_wire.base_url(options),
            headers=http_wire.headers(options),
            transport=transport,
            # Ignore the environment's proxies and credentials: requests go straight to the server.
            trust_env=False,
        )
        self.calls: set[AsyncHttpCall] = set()
        """The running requests."""
        self._asking: set[asyncio.Timeout] = set()
        """Those that describe the server or a model, each as the limit with which `close` ends it."""
        self.detector = AsyncFailureDetector(options.unreachable, self._probe, self._give_up)
        self._closed = False

    def start(self, request: Request, limits: TimeLimits) -> "AsyncHttpCall":
        """See `AsyncConnection`. The request is sent when the caller begins to read `replies`."""
        self._check_open()
        return AsyncHttpCall(self, request, limits)

    async def _probe(self) -> None:
        try:
            await self.client.get("/v2/health/live", timeout=None)
        except httpx.HTTPError:
            return  # Nobody is there.
        self.detector.heard()

    async def _give_up(self) -> None:
        for call in self.calls:
            call.end(self.options.no_answer())

    def _check_open(self) -> None:
        if self._closed:
            raise client_closed()

    async def is_ready(self, model: str, timeout: float) -> bool:
        """See `AsyncConnection`."""
        response = await self._ask(f"{http_wire.model_path(model)}/ready", timeout)
        return response.status_code == httpx.codes.OK

    async def server_info(self, timeout: float) -> ServerInfo:
        """See `AsyncConnection`."""
        return http_wire.server_info(await self._get("/v2", timeout))

    async def model_info(self, model: str, timeout: float) -> ModelInfo:
        """See `AsyncConnection`."""
        metadata = await self._get(http_wire.model_path(model), timeout)
        return http_wire.model_info(metadata, await self._get(f"{http_wire.model_path(model)}/config", timeout))

    async def _ask(self, path: str, timeout: float) -> httpx.Response:
        self._check_open()
        limit = asyncio.timeout(None)
        self._asking.add(limit)
        try:
            async with limit:
                return await self.client.get(path, timeout=timeout)
        except TimeoutError:
            raise client_closed() from None
        except httpx.HTTPError as error:
            raise http_wire.error_of_httpx(error) from error
        finally:
            self._asking.discard(limit)

    async def _get(self, path: str, timeout: float) -> dict[str, Any]:
        response = await self._ask(path, timeout)
        if response.is_error:
            message = http_wire.message_of(response.content)
            error_of = http_wire.error_of_response(response.status_code, message, response.headers)
            raise error_of or ModelNotReady(message)
        document: dict[str, Any] = response.json()
        return document

    async def explain(self, status: int, message: str, headers: httpx.Headers, model: str) -> InflightError:
        """Return the error that a failed response means."""
        if (error := http_wire.error_of_response(status, message, headers)) is not None:
            return error
        return InvalidRequest(message) if await self.is_ready(model, _PROBE_SECONDS) else ModelNotReady(message)

    async def cancel(self, request: Request, key: str) -> None:
        """Tell the server that nobody waits for a request any more. It was sent with the `cancel_key` `key`."""
        # If this fails, the request runs to its end.
        with contextlib.suppress(httpx.HTTPError):
            cancelling = {"text_input": "", "cancel": key}
            await self.client.post(http_wire.path(request), json=cancelling, timeout=_CANCEL_SECONDS)

    async def close(self) -> None:
        """See `AsyncConnection`."""
        self._closed = True
        await self.detector.close()
        for limit in self._asking:
            if not limit.expired():
                limit.reschedule(0.0)
        for call in list(self.calls):
            await call.cancel()
        await self.client.aclose()


class AsyncHttpCall:
    """See `AsyncCall`."""

    def __init__(self, connection: AsyncHttpConnection, request: Request, limits: TimeLimits) -> None:
        self._connection = connection
        self._request = request
        self._limits = limits
        self._ends = 0.0
        """The event loop's time at which the answer must be finished."""
        self._begun = False
        self._reading: asyncio.Timeout | None = None
        self._response: httpx.Response | None = None
        self._ended: InflightError | None = None
        """What has ended the request from outside."""
        self._cancel_key = uuid.uuid4().hex
        self._cancelling: asyncio.Task[None] | None = None

    async def replies(self) -> AsyncGenerator[Reply, None]:
        """See `AsyncCall`."""
        now = asyncio.get_running_loop().time()
        self._ends = now + self._limits.total
        next_at = now + self._limits.first
        async with self._opened(next_at) as response:
            events = EventSource(response).aiter_sse()
            while (event := await self._until(next_at, anext(events, None))) is not None:
                if not event.data:  # The standard says to ignore events without data, but httpx-sse passes them on.
                    continue
                outputs = http_wire.outputs_of(event)
                if "error" in outputs:
                    raise await self._error(response, str(outputs["error"]))
                self._begun = True
                yield http_wire.decode(outputs)
                next_at = asyncio.get_running_loop().time() + self._limits.gap

    @contextlib.asynccontextmanager
    async def _opened(self, until: float) -> AsyncIterator[httpx.Response]:
        """Send the request, and return the response to read, which must begin before the time `until`.

        Raises:
            InflightError: the request failed, here or while its response was read.
        """
        opening = self._connection.client.stream(
            "POST",
            http_wire.path(self._request),
            json={**http_wire.encode(self._request, self._limits.total), "cancel_key": self._cancel_key},
            headers=self._request.headers,
            timeout=http_wire.timeouts(self._connection.options),
        )
        self._connection.calls.add(self)
        try:
            with self._connection.detector.watching():
                self._response = response = await self._until(until, opening.__aenter__())
                try:
                    if response.is_error:
                        message = http_wire.message_of(await self._until(until, response.aread()))
                        raise await self._error(response, message)
                    yield response
                finally:
                    await opening.__aexit__(None, None, None)
        except httpx.HTTPError as error:
            raise http_wire.error_of_httpx(error) from error
        except (asyncio.CancelledError, GeneratorExit, DeadlineExceeded):
            await self._cancel_unstreamed()
            raise
        finally:
            self._connection.calls.discard(self)

    async def _until(self, time: float, waiting: Awaitable[_T]) -> _T:
        """Wait for something until a time, the end of the request's time, or a call of `end`."""
        try:
            async with asyncio.timeout_at(0.0 if self._ended else min(time, self._ends)) as self._reading:
                found = await waiting
        except TimeoutError:
            if self._ended is not None:
                raise self._ended from None
            if self._begun and self._ends <= time:
                raise DeadlineExceeded(f"the answer was not finished within {self._limits.total} s") from None
            raise self._limits.nothing_came(begun=self._begun) from None
        finally:
            self._reading = None
        self._connection.detector.heard()
        return found

    async def _error(self, response: httpx.Response, message: str) -> InflightError:
        explained = self._connection.explain(response.status_code, message, response.headers, self._request.model)
        return await self._until(self._ends, explained)

    def end(self, error: InflightError) -> None:
        """End the request with an error, now or as soon as it waits for something. The first call decides."""
        self._ended = self._ended or error
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(0.0)

    async def cancel(self) -> None:
        """See `AsyncCall`. Triton notices at its next write that a stream is closed."""
        self.end(RequestCancelled("the request was cancelled"))
        if self._reading is None and self._response is not None:
            await self._response.aclose()
        if self in self._connection.calls:
            await self._cancel_unstreamed()

    async def _cancel_unstreamed(self) -> None:
        """Cancel a request that does not stream. Triton's next write for it is its whole answer."""
        if self._request.stream or self._begun:
            return
        if self._cancelling is None:
            self._cancelling = asyncio.create_task(self._connection.cancel(self._request, self._cancel_key))
        # `close` waits for it, too, and a task that is cancelled once more must not end it.
        await asyncio.shield(self._cancelling)
