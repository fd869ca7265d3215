"""One request's answer, while it is being written."""

import threading
from collections import deque
from types import TracebackType
from typing import Self

from inflight_client.errors import InflightError, RequestCancelled
from inflight_client.options import Timeouts
from inflight_client.request import Request
from inflight_client.response import Chunk, Completion, Reply, Timings, Usage
from inflight_client.retry import Attempts, RetryPolicy
from inflight_client.transcript import Transcript
from inflight_client.transport.connection import Connection


class TextStream:
    """Iterator over the chunks of one request.

    As a context manager it cancels the request on the server when left before the end. Until the first chunk a failed
    request is sent again, as the client's `RetryPolicy` says. Iterating raises an `InflightError` when the request
    fails for good, `RequestCancelled` after `cancel()`.
    """

    def __init__(self, connection: Connection, request: Request, timeouts: Timeouts, retry: RetryPolicy) -> None:
        self._connection = connection
        self._request = request
        self._attempts = Attempts(retry, timeouts, stream=request.stream)
        self._cancelled = threading.Event()
        self._ready: deque[Chunk] = deque()
        self._transcript = Transcript(request)
        self._send()

    def _send(self) -> None:
        first, total = self._attempts.next_bounds()
        self._call = self._connection.start(self._request, first=first, total=total)
        self._replies = self._call.replies()
        if self._cancelled.is_set():  # `cancel` may have met the call before.
            self._call.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        while not self._ready:
            reply = self._next_reply()
            if reply is None:
                self._transcript.check_finished()
                raise StopIteration
            self._ready.extend(self._transcript.add(reply))
            if self._transcript.finished:
                # Triton 24.10 wants its streams read to the end, or may never unload the model.
                for _ in self._replies:
                    pass
        return self._ready.popleft()

    def _next_reply(self) -> Reply | None:
        while True:
            try:
                return next(self._replies, None)
            except InflightError as error:
                if self._transcript.begun or self._cancelled.is_set():
                    raise
                if self._cancelled.wait(self._attempts.wait_after(error)):
                    raise RequestCancelled("the request was cancelled") from error
                self._send()

    def cancel(self) -> None:
        """Tell the server to stop; safe from any thread, and after the end."""
        self._cancelled.set()
        self._call.cancel()

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        return self._transcript.usage()

    @property
    def timings(self) -> Timings:
        """The times so far."""
        return self._transcript.timings()

    def completion(self) -> Completion:
        """Read what is left and return all of it."""
        for _ in self:
            pass
        return self._transcript.completion()

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
