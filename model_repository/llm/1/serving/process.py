"""Another process, seen through the kernel's `/proc`. Standard library only: the guardian uses this too."""

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

SHARED_MEMORY = "/dev/shm/"

_LISTENING = "0A"


class Process:
    """A process. Its start time tells it from a later process with the same id.

    A pidfd would do the same, but kernels before 5.3 and some sandboxes have none; see `end_descriptor`.
    """

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError if there is no such process, or if it has ended and waits for its parent."""
        fields = _status(pid)
        if fields is None:
            raise ProcessLookupError(f"there is no process {pid}")
        self.pid = pid
        self._started = fields[19]

    def is_alive(self) -> bool:
        """Whether the process is still running."""
        fields = _status(self.pid)
        return fields is not None and fields[19] == self._started

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end_descriptor(self) -> int | None:
        """Open a file descriptor that becomes readable when the process ends. None where the system has none."""
        try:
            return os.pidfd_open(self.pid)
        except OSError:
            return None

    def ends_within(self, seconds: float) -> bool:
        """Wait for the process's end. Return whether it came in time."""
        deadline = time.monotonic() + seconds
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    @property
    def user(self) -> str | None:
        """The id of the user whose process it is. None if it has ended."""
        return next((line.split()[1] for line in self._lines("status") if line.startswith("Uid:")), None)

    def regions(self) -> set[str]:
        """Return the paths of the files in shared memory that the process has mapped.

        Raises:
            PermissionError: this process may not look.
        """
        paths = (fields[5] for line in self._lines("maps") if len(fields := line.split(maxsplit=5)) == 6)
        return {path for path in paths if path.startswith(SHARED_MEMORY) and not path.endswith(" (deleted)")}

    def listening(self) -> list[tuple[str, int]]:
        """Return the addresses and ports on which the process waits for TCP connections."""
        own = set()
        with contextlib.suppress(FileNotFoundError, PermissionError):
            for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    own.add(os.readlink(descriptor))
        sockets = [line.split() for table in ("net/tcp", "net/tcp6") for line in self._lines(table)[1:]]
        return [_address(fields[1]) for fields in sockets if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in own]

    def _lines(self, name: str) -> list[str]:
        try:
            return Path(f"/proc/{self.pid}/{name}").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return []


def _status(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` after the name, or None if the process has ended."""
    try:
        # The name may contain spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields


def _address(text: str) -> tuple[str, int]:
    """Read an address of the kernel's tables: hexadecimal words in the machine's byte order, and a port."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[i : i + 8]) for i in range(0, len(host), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed), int(port, 16)
