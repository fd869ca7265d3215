"""Connections to servers for prompts and for the rest, for asyncio."""

import contextlib
import time
from collections.abc import AsyncGenerator

from inflight_client.errors import InflightError, RequestCancelled
from inflight_client.options import TimeLimits
from inflight_client.prefill.prefill import FirstCall, Prefill, PrefillServers, second_call
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport.connection import AsyncCall, AsyncConnection


class AsyncPrefillConnection:
    """See `AsyncConnection`. All but long prompts goes to `rest`."""

    def __init__(self, prefill: Prefill, prompts: AsyncConnection, rest: AsyncConnection) -> None:
        self.prefill, self.prompts, self.rest = prefill, prompts, rest
        self.servers = PrefillServers(prefill)

    def start(self, request: Request, limits: TimeLimits) -> AsyncCall:
        """See `AsyncConnection`."""
        if self.prefill.is_for(request):
            return AsyncPrefillCall(self, request, limits)
        return self.rest.start(request, limits)

    async def is_ready(self, model: str, timeout: float) -> bool:
        """See `AsyncConnection`."""
        return await self.rest.is_ready(model, timeout)

    async def server_info(self, timeout: float) -> ServerInfo:
        """See `AsyncConnection`."""
        return await self.rest.server_info(timeout)

    async def model_info(self, model: str, timeout: float) -> ModelInfo:
        """See `AsyncConnection`."""
        return await self.rest.model_info(model, timeout)

    async def close(self) -> None:
        """See `AsyncConnection`."""
        await self.prompts.close()
        await self.rest.close()


class AsyncPrefillCall:
    """See `AsyncCall`: two calls, one after the other."""

    def __init__(self, connection: AsyncPrefillConnection, request: Request, limits: TimeLimits) -> None:
        self._connection, self._request, self._limits = connection, request, limits
        self._cancelled = False
        self._call: AsyncCall | None = None

    async def replies(self) -> AsyncGenerator[Reply, None]:
        """See `AsyncCall`."""
        begun = time.monotonic()
        offer = None
        if (first := self._connection.servers.begin()) is not None:
            offer = first.end(await self._ask(first))
        request, limits = second_call(self._request, self._limits, offer, time.monotonic() - begun)
        async with contextlib.aclosing(self._start(self._connection.rest, request, limits).replies()) as replies:
            async for reply in replies:
                yield reply

    async def _ask(self, first: FirstCall) -> InflightError | None:
        """Let another server compute the prompt. Return why it has not."""
        try:
            asked = self._connection.prefill.first_call(self._request, self._limits)
            call = self._start(self._connection.prompts, *asked)
            async with contextlib.aclosing(call.replies()) as replies:
                async for reply in replies:
                    first.take(reply)
        except InflightError as error:
            return error
        return None

    def _start(self, connection: AsyncConnection, request: Request, limits: TimeLimits) -> AsyncCall:
        if self._cancelled:
            raise RequestCancelled("the request was cancelled")
        self._call = connection.start(request, limits)
        return self._call

    async def cancel(self) -> None:
        """See `AsyncCall`."""
        self._cancelled = True
        if self._call is not None:
            await self._call.cancel()
