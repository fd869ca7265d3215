"""The answer to one request, while the server generates it, for asyncio."""

import asyncio
import contextlib
from collections import deque
from types import TracebackType
from typing import Self

from inflight_client.errors import InflightError, RequestCancelled
from inflight_client.options import Timeouts
from inflight_client.request import Request
from inflight_client.response import Chunk, Completion, Embedding, PerfMetrics, PromptTokens, Reply, Timings, Usage
from inflight_client.retry import Attempts, RetryPolicy
from inflight_client.transcript import Transcript
from inflight_client.transport.connection import AsyncConnection


class AsyncTextStream:
    """Asynchronous iterator over the chunks of one request. It has the same methods as `TextStream`.

    If a task is cancelled while it waits for a chunk, the request is cancelled too.
    """

    def __init__(self, connection: AsyncConnection, request: Request, timeouts: Timeouts, retry: RetryPolicy) -> None:
        self._connection = connection
        self._attempts = Attempts(retry, timeouts, request)
        self._cancelled = asyncio.Event()
        self._ready: deque[Chunk] = deque()
        self._failure: InflightError | None = None
        self._transcript = Transcript(request)
        self._send()

    def _send(self) -> None:
        self._call = self._connection.start(*self._attempts.next())
        self._replies = self._call.replies()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._failure is not None:
            raise self._failure
        try:
            return await self._next_chunk()
        except InflightError as failure:
            self._failure = failure
            raise

    async def _next_chunk(self) -> Chunk:
        while not self._ready:
            reply = await self._next_reply()
            if reply is None:
                if self._cancelled.is_set() and not self._transcript.finished:
                    raise RequestCancelled("the request was cancelled")
                self._transcript.check_finished()
                raise StopAsyncIteration
            self._ready.extend(self._transcript.add(reply))
            if self._transcript.finished:
                await self._read_to_the_end()
        return self._ready.popleft()

    async def _read_to_the_end(self) -> None:
        # Otherwise Triton 24.10 may never unload the model. The answer is complete, so no error takes it away.
        with contextlib.suppress(InflightError):
            async for _ in self._replies:
                pass

    async def _next_reply(self) -> Reply | None:
        while True:
            try:
                return await anext(self._replies, None)
            except InflightError as error:
                if self._cancelled.is_set():
                    raise RequestCancelled("the request was cancelled") from error
                if self._transcript.begun:
                    raise
                await self._wait(self._attempts.wait_after(error))
                self._send()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._cancelled.wait(), seconds)
        # Also after a timeout: `cancel` may have been called after it, but before this task went on.
        if self._cancelled.is_set():
            raise RequestCancelled("the request was cancelled")

    async def cancel(self) -> None:
        """Tell the server to stop. Any task may call this, even after the end of the request."""
        self._cancelled.set()
        await self._call.cancel()

    @property
    def usage(self) -> Usage:
        """The number of tokens so far."""
        return self._transcript.usage()

    @property
    def timings(self) -> Timings:
        """The times measured so far."""
        return self._transcript.timings()

    @property
    def prompt(self) -> PromptTokens | None:
        """The prompt as the model read it, from the first chunk on, if `return_prompt` or `prompt_logprobs` asked for
        it."""
        return self._transcript.prompt

    @property
    def perf(self) -> tuple[PerfMetrics, ...]:
        """What the server did for each answer, at the end and if `return_perf_metrics` asked for it."""
        return self._transcript.perf()

    async def completion(self) -> Completion:
        """Read the rest of the answer and return the whole of it."""
        async for _ in self:
            pass
        return self._transcript.completion()

    async def embedding(self) -> Embedding:
        """Wait for the end of a request for an embedding, and return it."""
        async for _ in self:
            pass
        return self._transcript.embedding()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._transcript.finished:
            await self.cancel()
        # If another task reads now, Python refuses to close the replies. The cancellation ends them there.
        if not self._replies.ag_running:  # type: ignore[attr-defined]
            await self._replies.aclose()
