"""Log lines about what other programs do. They could fill the log, so each kind is written once in ten seconds."""

import logging
import threading
import time

_SECONDS_BETWEEN = 10.0


class RareLog:
    """Writes lines in the name of a logger. Any thread may use it."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._written: dict[str, float] = {}
        """When a line of each kind was written last."""

    def log(self, level: int, kind: str, message: str, *values: object) -> None:
        """Write a line, unless one of its kind was written lately. There must be few kinds."""
        now = time.monotonic()
        with self._lock:
            if now - self._written.get(kind, -_SECONDS_BETWEEN) < _SECONDS_BETWEEN:
                return
            self._written[kind] = now
        self._logger.log(level, message, *values)
