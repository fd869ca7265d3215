"""Temporary folders that do not outlive their process for long."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class LockedFolder:
    """An empty folder that only this user can read, locked as long as this process has it.

    If a process is killed, nothing is left to remove its folder. So whoever makes one first removes those that nobody
    has locked.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        """`prefix` begins the names of the folders in `parent` that are locked like this one, and of no others."""
        _remove_abandoned(parent, prefix)
        self.path, self._lock = _make(parent, prefix)

    def remove(self) -> None:
        """Remove it. Call this once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder. Return it with the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = os.open(folder, os.O_RDONLY)
        with contextlib.suppress(OSError):  # Where a file system has no locks, nobody removes what is abandoned.
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # Another process has taken it for abandoned before it was locked.


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
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
