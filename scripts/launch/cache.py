"""The folder for downloads and conversions: `INFLIGHT_CACHE`, or `~/.cache/inflight`."""

import fcntl
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from scripts.launch.errors import LauncherError

_PLAIN_PATH = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def cache_root() -> Path:
    """Return the cache folder. Raises LauncherError if it cannot be written, or Triton cannot use its path."""
    try:
        root = Path(os.environ.get("INFLIGHT_CACHE") or "~/.cache/inflight").expanduser().resolve()
    except RuntimeError as error:
        raise LauncherError("this user has no home folder; set INFLIGHT_CACHE to a folder") from error
    # Triton passes paths below it through a shell without quotes, to an interpreter that reads names of files as ASCII.
    if not _PLAIN_PATH.fullmatch(str(root)):
        raise LauncherError(
            f"INFLIGHT_CACHE is {str(root)!r}; Triton needs a path of ASCII letters, digits and the characters "
            "_@%+=:,./- alone"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LauncherError(f"INFLIGHT_CACHE is {str(root)!r}; the folder cannot be made: {error.strerror}") from error
    if not os.access(root, os.W_OK):
        raise LauncherError(f"INFLIGHT_CACHE is {str(root)!r}; the folder cannot be written")
    return root


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return `target`. On first use `build` creates it in an empty folder.

    The folder gets its final name only after `build` has returned, so an interrupted build leaves nothing that looks
    complete. If two processes call this at the same time, only one of them builds. Exceptions of `build` are passed on.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        # We hold the lock, so a folder that exists here was left by a build that was killed.
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        try:
            build(partial)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target
