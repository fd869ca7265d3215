"""Files that nobody else can have written, because code is loaded from them."""

import os
import stat
from pathlib import Path


def private_folder(folder: Path) -> Path:
    """Return `folder`, an absolute path without links; it is created if it is missing.

    Raises:
        PermissionError: another user can change it, or put another folder in its place; the message says how.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    for parent in folder.parents:
        status = parent.stat()
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(f"{parent}, which holds {folder}, belongs to another user")
        # Where the sticky bit is set, as on /tmp, only owners can replace what is there.
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise PermissionError(f"{parent}, which holds {folder}, can be written by all users")
    return folder


def check_private(path: Path) -> None:
    """Check that a file or folder is this user's, and that only this user can write to it.

    Raises:
        PermissionError: it is not, or it is a link.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise PermissionError(f"{path} is a link")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} can be written by other users")
