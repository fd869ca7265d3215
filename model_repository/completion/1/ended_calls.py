"""Responses of calls that have ended, kept until Triton has let go of them."""

import threading
from collections.abc import Callable, Iterator
from typing import Any


class EndedCalls:
    """Holds on to responses for as long as Triton may.

    Whoever lets go last frees the Python objects in them. A thread of Triton's stub (`SendCleanupId`, 24.10) frees
    without the GIL, which breaks this process's memory: six busy clients end it within minutes. So Triton must never be
    the last. That thread works off one queue: when a question has come back through it, what was in it before is done.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._responses: list[Any] = []

    def call(self, request: Any) -> Iterator[Any]:
        """The responses of another model to a request of `pb_utils`, kept once they are read to their end."""
        responses = request.exec(decoupled=True)
        try:
            yield from responses
        finally:
            with self._lock:
                self._responses.append(responses)

    def ask(self, is_cancelled: Callable[[], bool]) -> bool:
        """Say what `is_cancelled` says, and free what was kept before if that is no.

        A no must come from Triton, through the queue; a yes may be remembered. As each call begins with this, no more
        is kept than calls ran at once, and cancellations were sent since.
        """
        with self._lock:
            before, self._responses = self._responses, []
        cancelled = is_cancelled()
        if cancelled:
            with self._lock:
                self._responses += before
        return cancelled
