"""The prompts that wait for another engine: bounded in bytes, and each only for a while."""

import hmac
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# What becomes of an export.
FETCHED = "fetched"
RELEASED = "released"
"""Its request ended before it was fetched."""
EXPIRED = "expired"
FULL = "full"
"""There was no room for it."""
FAILED = "failed"
OUTCOMES = (FETCHED, RELEASED, EXPIRED, FULL, FAILED)

# Why it is refused to somebody who asks for it.
UNKNOWN = "unknown"
PROMPT = "prompt"


class Refused(Exception):
    """An export is not given out. The text is the reason, one word."""


@dataclass(frozen=True, eq=False)
class Export:
    """The keys and values of a prompt."""

    handle: str
    digest: str
    num_tokens: int
    data: NDArray[np.uint8]
    """[bytes]"""
    expires_at: float

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return len(self.data)


class ExportStore:
    """Keeps exports by their handles. Any thread may use it."""

    def __init__(self, most_bytes: int, seconds: float, clock: Callable[[], float]) -> None:
        """`most_bytes`: bound for all exports together. `seconds`: how long each is kept, by `clock`."""
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._exports: dict[str, Export] = {}
        """Oldest first. The lock guards this and the next two attributes."""
        self.num_bytes = 0
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))

    def add(self, digest: str, num_tokens: int, num_bytes: int) -> Export | None:
        """Make room for an export. Nobody else knows its handle yet. None: there is no room.

        Raises:
            MemoryError: the system has no memory for it.
        """
        self.expire()
        with self._lock:
            if self.num_bytes + num_bytes > self._most_bytes:
                self.outcomes[FULL] += 1
                return None
            self.num_bytes += num_bytes
        try:
            data = np.empty(num_bytes, dtype=np.uint8)
        except MemoryError:
            with self._lock:
                self.num_bytes -= num_bytes
                self.outcomes[FAILED] += 1
            raise
        export = Export(secrets.token_hex(16), digest, num_tokens, data, self._clock() + self._seconds)
        with self._lock:
            self._exports[export.handle] = export
        return export

    def find(self, handle: str, digest: str) -> Export:
        """Return an export.

        Raises:
            Refused: there is none of this name, or it is of another prompt.
        """
        self.expire()
        with self._lock:
            export = self._exports.get(handle)
        if export is None:
            raise Refused(UNKNOWN)
        # Whoever connects may send text that UTF-8 does not have.
        if not hmac.compare_digest(export.digest.encode(), digest.encode(errors="replace")):
            raise Refused(PROMPT)
        return export

    def drop(self, handle: str, outcome: str) -> None:
        """Free an export. One that is not there any more is ignored."""
        with self._lock:
            export = self._exports.pop(handle, None)
            if export is not None:
                self.num_bytes -= export.num_bytes
                self.outcomes[outcome] += 1

    def expire(self) -> None:
        """Free the exports whose time is over."""
        now = self._clock()
        with self._lock:
            late = [handle for handle, export in self._exports.items() if export.expires_at <= now]
        for handle in late:
            self.drop(handle, EXPIRED)

    def clear(self) -> None:
        """Free all exports."""
        with self._lock:
            handles = list(self._exports)
        for handle in handles:
            self.drop(handle, RELEASED)
