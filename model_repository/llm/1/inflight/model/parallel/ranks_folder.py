"""The folder in which the ranks of one machine find each other."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "inflight-local-ranks-"


class RanksFolder:
    """An empty folder that only this user can read, locked as long as this process has it.

    If all processes are killed at once, none is left to remove it. So whoever makes one first removes those that nobody
    has locked.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        self.path, self._lock = _make()

    def remove(self) -> None:
        """Remove it. Call this once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _make() -> tuple[Path, int]:
    """Make a folder. Return it with the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # Another process has taken it for abandoned before it was locked.


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # It belongs to another user, is in use, or has just been removed.
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                # The kernel drops a lock with its process, however that ended.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(folder)
            finally:
                os.close(lock)
