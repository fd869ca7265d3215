"""Responses of calls that have ended, kept until Triton has let go of them."""

import threading
from collections.abc import Callable
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

    def keep(self, responses: Any) -> None:
        """Take what `exec` gave, once it is read to its end."""
        with self._lock:
            self._responses.append(responses)

    def ask(self, is_cancelled: Callable[[], bool]) -> bool:
        """Say what `is_cancelled` says, and free what was kept before.

        Each call begins with this, so that no more is kept than ran at once. Of a request that was cancelled before,
        Triton's answer may come without going through the queue.
        """
        with self._lock:
            before, self._responses = self._responses, []
        cancelled = is_cancelled()
        if cancelled:
            with self._lock:
                self._responses += before
        return cancelled
