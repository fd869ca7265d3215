"""Keeps two processes from having metrics with the same labels at once."""

import errno
import hashlib
import os
import socket
from collections.abc import Mapping


class SeriesLock:
    """Held by the process whose metrics have these labels in this server. The kernel gives it back when it ends.

    While a model is loaded again, its old process and its new one live at the same time. Triton (24.10) gives metrics
    of the same name and labels the same memory, and frees it when either process deletes its own. The next update by
    the other one then corrupts the server's memory or crashes it.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        # An abstract address exists in a network namespace, and a process id in one of processes.
        owner = f"{os.stat('/proc/self/ns/pid').st_ino}-{os.getppid()}"
        # The kernel allows 107 bytes. The name of a model alone may have more.
        digest = hashlib.blake2b("\0".join(labels.values()).encode(), digest_size=16).hexdigest()
        self._address = f"\0inflight-metrics-{owner}-{digest}"
        self._socket: socket.socket | None = None

    def acquire(self) -> bool:
        """Return whether this process holds the lock now. Does not wait."""
        if self._socket is None:
            held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                held.bind(self._address)
            except OSError as error:
                held.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                return False
            self._socket = held
        return True

    def release(self) -> None:
        """Give the lock back, if this process holds it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
