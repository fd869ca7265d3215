"""Keeps the responses of ended calls alive until Triton has released them."""

import threading
from collections.abc import Callable, Iterator
from typing import Any


class EndedCalls:
    """Keeps responses alive for at least as long as Triton holds them.

    Both Triton and this process hold a reference to each response. The last one to drop its reference frees the Python
    objects of the response. A thread of Triton's stub (`SendCleanupId`, 24.10) would do so without the GIL and corrupt
    the memory of this process: with six busy clients the process crashes within minutes. So this process must always
    drop its reference last.

    The stub's thread processes one queue in order. The question whether a client has cancelled goes through the same
    queue. When its answer has come back, Triton has dropped everything that was in the queue before the question.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._responses: list[Any] = []

    def call(self, request: Any) -> Iterator[Any]:
        """Yield the responses of another model to a `pb_utils` request, and keep them after the last one."""
        responses = request.exec(decoupled=True)
        try:
            yield from responses
        finally:
            with self._lock:
                self._responses.append(responses)

    def ask(self, is_cancelled: Callable[[], bool]) -> bool:
        """Return `is_cancelled()`. If it is False, drop the responses that were kept before.

        A False must come from Triton, through its queue. A True may come from this process, so it drops nothing. Every
        call asks first, so the number of kept responses is bounded: by the calls that run at once, plus the
        cancellations sent since.
        """
        with self._lock:
            before, self._responses = self._responses, []
        cancelled = is_cancelled()
        if cancelled:
            with self._lock:
                self._responses += before
        return cancelled
