"""Bounds how many calls of `llm` run or wait at once."""

import threading


class Slots:
    """Counts how many more calls of `llm` may run or wait for a thread."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count

    def take(self, count: int) -> bool:
        """Take `count` slots and return True, or take none and return False."""
        with self._lock:
            if count > self._free:
                return False
            self._free -= count
            return True

    def give_back(self) -> None:
        """Give back one slot."""
        with self._lock:
            self._free += 1
