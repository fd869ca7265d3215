"""The answer to one request, while the server generates it."""

import contextlib
import threading
from collections import deque
from types import TracebackType
from typing import Self

from inflight_client.errors import InflightError, RequestCancelled
from inflight_client.options import Timeouts
from inflight_client.request import Request
from inflight_client.response import Chunk, Completion, Embedding, PerfMetrics, PromptTokens, Reply, Timings, Usage
from inflight_client.retry import Attempts, RetryPolicy
from inflight_client.transcript import Transcript
from inflight_client.transport.connection import Connection


class TextStream:
    """Iterator over the chunks of one request.

    Use it as a context manager: leaving the block before the end cancels the request on the server. If the request
    fails before its first chunk, it is sent again as the client's `RetryPolicy` allows. Iterating raises an
    `InflightError` when the request has failed and is not sent again, and `RequestCancelled` after `cancel()`.
    """

    def __init__(self, connection: Connection, request: Request, timeouts: Timeouts, retry: RetryPolicy) -> None:
        self._connection = connection
        self._attempts = Attempts(retry, timeouts, request)
        self._cancelled = threading.Event()
        self._ready: deque[Chunk] = deque()
        self._failure: InflightError | None = None
        self._transcript = Transcript(request)
        self._send()

    def _send(self) -> None:
        self._call = self._connection.start(*self._attempts.next())
        self._replies = self._call.replies()
        if self._cancelled.is_set():  # `cancel` may have cancelled the previous call just before this one began.
            self._call.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if self._failure is not None:
            raise self._failure
        try:
            return self._next_chunk()
        except InflightError as failure:
            self._failure = failure
            raise

    def _next_chunk(self) -> Chunk:
        while not self._ready:
            reply = self._next_reply()
            if reply is None:
                if self._cancelled.is_set() and not self._transcript.finished:
                    raise RequestCancelled("the request was cancelled")
                self._transcript.check_finished()
                raise StopIteration
            self._ready.extend(self._transcript.add(reply))
            if self._transcript.finished:
                self._read_to_the_end()
        return self._ready.popleft()

    def _read_to_the_end(self) -> None:
        # Otherwise Triton 24.10 may never unload the model. The answer is complete, so no error takes it away.
        with contextlib.suppress(InflightError):
            for _ in self._replies:
                pass

    def _next_reply(self) -> Reply | None:
        while True:
            try:
                return next(self._replies, None)
            except InflightError as error:
                if self._cancelled.is_set():
                    raise RequestCancelled("the request was cancelled") from error
                if self._transcript.begun:
                    raise
                if self._cancelled.wait(self._attempts.wait_after(error)):
                    raise RequestCancelled("the request was cancelled") from error
                self._send()

    def cancel(self) -> None:
        """Tell the server to stop. Any thread may call this, even after the end of the request."""
        self._cancelled.set()
        self._call.cancel()

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

    def completion(self) -> Completion:
        """Read the rest of the answer and return the whole of it."""
        for _ in self:
            pass
        return self._transcript.completion()

    def embedding(self) -> Embedding:
        """Wait for the end of a request for an embedding, and return it."""
        for _ in self:
            pass
        return self._transcript.embedding()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._transcript.finished:
            self.cancel()
        # If another thread reads now, Python refuses to close the replies. The cancellation ends them there.
        with contextlib.suppress(ValueError):
            self._replies.close()
