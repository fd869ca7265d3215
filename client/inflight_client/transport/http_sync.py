"""HTTP for threads: runs the asyncio transport on an event loop in a separate thread.

No thread can wake another one that waits for an HTTP response, but a task can be cancelled at any time.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from inflight_client.options import Options
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport.http_async import AsyncHttpCall, AsyncHttpConnection

_T = TypeVar("_T")


class HttpConnection:
    """See `Connection`."""

    def __init__(self, options: Options) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = AsyncHttpConnection(options)
        self._thread = threading.Thread(target=self._loop.run_forever, name="inflight-http", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and wait for its result."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # In case this thread was interrupted.

    def soon(self, make: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine on the loop without waiting for it. Does nothing after `close`."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(make(), self._loop)

    def start(self, request: Request, *, first: float, total: float) -> "HttpCall":
        """See `Connection`. The request is sent when the caller begins to read `replies`."""
        return HttpCall(self, self._connection.start(request, first=first, total=total))

    def is_ready(self, model: str, timeout: float) -> bool:
        """See `Connection`."""
        return self.run(self._connection.is_ready(model, timeout))

    def server_info(self, timeout: float) -> ServerInfo:
        """See `Connection`."""
        return self.run(self._connection.server_info(timeout))

    def model_info(self, model: str, timeout: float) -> ModelInfo:
        """See `Connection`."""
        return self.run(self._connection.model_info(model, timeout))

    def close(self) -> None:
        """See `Connection`."""
        if self._loop.is_closed():
            return
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._connection.close()


class HttpCall:
    """See `Call`."""

    def __init__(self, connection: HttpConnection, call: AsyncHttpCall) -> None:
        self._connection = connection
        self._call = call
        self._replies = call.replies()
        self._reading: asyncio.Task[Any] | None = None

    def replies(self) -> Iterator[Reply]:
        """See `Call`."""
        try:
            while (reply := self._connection.run(self._next())) is not None:
                yield reply
        finally:
            self._connection.soon(self._end)

    async def _next(self) -> Reply | None:
        self._reading = asyncio.current_task()
        return await anext(self._replies, None)

    async def _end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._replies.aclose()

    def cancel(self) -> None:
        """See `Call`. Triton notices the cancellation at its next write."""
        self._connection.soon(self._call.cancel)
