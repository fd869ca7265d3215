"""HTTP for threads: runs the asyncio transport on an event loop in a separate thread.

No thread can wake another one that waits for an HTTP response, but a task can be cancelled at any time.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from inflight_client.errors import client_closed
from inflight_client.options import Options, TimeLimits
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
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="inflight-http", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and wait for its result.

        Raises RequestCancelled after `close`, and RuntimeError in a process that was forked: it has no thread here.
        """
        future = self._submit(coroutine)
        if future is None and not self._closed:
            raise RuntimeError("a forked process cannot use the client of its parent; make a new one in it")
        if future is None:
            raise client_closed()
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise client_closed() from None
        finally:
            future.cancel()  # In case this thread was interrupted.

    def soon(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the loop without waiting for it. Does nothing after `close`, and after a fork."""
        self._submit(coroutine)

    def _submit(self, coroutine: Coroutine[Any, Any, _T]) -> "concurrent.futures.Future[_T] | None":
        with self._closing:
            if not self._closed and self._thread.is_alive():
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        return None

    def start(self, request: Request, limits: TimeLimits) -> "HttpCall":
        """See `Connection`. The request is sent when the caller begins to read `replies`."""
        return HttpCall(self, self._connection.start(request, limits))

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
        with self._closing:
            if self._closed or not self._thread.is_alive():
                return
            self._closed = True
            # After this, nothing more is submitted. What was submitted before has become a task when this one runs.
            closed = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        closed.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        await self._connection.close()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class HttpCall:
    """See `Call`."""

    def __init__(self, connection: HttpConnection, call: AsyncHttpCall) -> None:
        self._connection = connection
        self._call = call
        self._replies = call.replies()
        self._reading: asyncio.Task[Any] | None = None

    def replies(self) -> Generator[Reply, None, None]:
        """See `Call`."""
        try:
            while (reply := self._connection.run(self._next())) is not None:
                yield reply
        finally:
            self._connection.soon(self._end())

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
        self._connection.soon(self._call.cancel())
