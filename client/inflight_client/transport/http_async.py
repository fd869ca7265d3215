"""HTTP for asyncio: a pool of connections, one for each running request."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, NamedTuple, TypeVar

import httpx
from httpx_sse import EventSource

from inflight_client.errors import DeadlineExceeded, InflightError, InvalidRequest, ModelNotReady, RequestCancelled
from inflight_client.options import Options
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport import http_wire

_PROBE_SECONDS = 5.0

_T = TypeVar("_T")


class AsyncHttpConnection:
    """See `AsyncConnection`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.client = httpx.AsyncClient(
            base_url=http_wire.base_url(options),
            verify=http_wire.ssl_context(options),
            headers=dict(options.headers),
            limits=http_wire.LIMITS,
            # Ignore the environment's proxies and credentials: requests go straight to the server.
            trust_env=False,
        )

    def start(self, request: Request, *, first: float, total: float) -> "AsyncHttpCall":
        """See `AsyncConnection`. The request is sent when the caller begins to read `replies`."""
        return AsyncHttpCall(self, request, first, total)

    async def is_ready(self, model: str, timeout: float) -> bool:
        """See `AsyncConnection`."""
        try:
            response = await self.client.get(f"{http_wire.model_path(model)}/ready", timeout=timeout)
        except httpx.HTTPError as error:
            raise http_wire.error_of_httpx(error) from error
        return response.status_code == httpx.codes.OK

    async def server_info(self, timeout: float) -> ServerInfo:
        """See `AsyncConnection`."""
        return http_wire.server_info(await self._get("/v2", timeout))

    async def model_info(self, model: str, timeout: float) -> ModelInfo:
        """See `AsyncConnection`."""
        metadata = await self._get(http_wire.model_path(model), timeout)
        return http_wire.model_info(metadata, await self._get(f"{http_wire.model_path(model)}/config", timeout))

    async def _get(self, path: str, timeout: float) -> dict[str, Any]:
        try:
            response = await self.client.get(path, timeout=timeout)
        except httpx.HTTPError as error:
            raise http_wire.error_of_httpx(error) from error
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

    async def close(self) -> None:
        """See `AsyncConnection`."""
        await self.client.aclose()


class _End(NamedTuple):
    """The event loop's time at which waiting ends, and the error message for that case."""

    time: float
    message: str


class AsyncHttpCall:
    """See `AsyncCall`."""

    def __init__(self, connection: AsyncHttpConnection, request: Request, first: float, total: float) -> None:
        self._connection = connection
        self._request = request
        self._first, self._total = first, total
        self._reading: asyncio.Timeout | None = None
        self._response: httpx.Response | None = None
        self._cancelled = False

    async def replies(self) -> AsyncGenerator[Reply, None]:
        """See `AsyncCall`."""
        now = asyncio.get_running_loop().time()
        end = _End(now + self._first, f"nothing came within {self._first} s")
        opening = self._connection.client.stream(
            "POST",
            http_wire.path(self._request),
            json=http_wire.encode(self._request, self._total),
            timeout=http_wire.timeouts(self._connection.options),
        )
        try:
            self._response = response = await self._until(end, opening.__aenter__())
            try:
                if response.is_error:
                    raise await self._error(response, http_wire.message_of(await response.aread()))
                events = EventSource(response).aiter_sse()
                while (event := await self._until(end, anext(events, None))) is not None:
                    if not event.data:
                        continue  # The standard says to ignore events without data, but httpx-sse passes them on.
                    outputs = http_wire.outputs_of(event)
                    if "error" in outputs:
                        raise await self._error(response, str(outputs["error"]))
                    end = _End(now + self._total, f"the answer was not finished within {self._total} s")
                    yield http_wire.decode(outputs, self._request.num_samples)
            finally:
                await opening.__aexit__(None, None, None)
        except httpx.HTTPError as error:
            raise http_wire.error_of_httpx(error) from error

    async def _until(self, end: "_End", waiting: Awaitable[_T]) -> _T:
        """Wait for something until `end`, or until `cancel` is called."""
        try:
            async with asyncio.timeout_at(0.0 if self._cancelled else end.time) as self._reading:
                return await waiting
        except TimeoutError:
            if self._cancelled:
                raise RequestCancelled("the request was cancelled") from None
            raise DeadlineExceeded(end.message) from None
        finally:
            self._reading = None

    async def _error(self, response: httpx.Response, message: str) -> InflightError:
        return await self._connection.explain(response.status_code, message, response.headers, self._request.model)

    async def cancel(self) -> None:
        """See `AsyncCall`. Triton notices the cancellation at its next write."""
        self._cancelled = True
        if self._reading is None and self._response is not None:
            await self._response.aclose()
        elif self._reading is not None and not self._reading.expired():
            self._reading.reschedule(0.0)
