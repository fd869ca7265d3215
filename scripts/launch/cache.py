"""Where downloads and conversions live: `INFLIGHT_CACHE`, or `~/.cache/inflight`."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache_root() -> Path:
    """Return the cache folder; it may not exist yet."""
    return Path(os.environ.get("INFLIGHT_CACHE") or "~/.cache/inflight").expanduser().resolve()


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return `target`, which `build` fills in an empty folder the first time.

    The folder takes its final name only when `build` has returned, so an interrupted build leaves nothing
    that looks whole. Two processes that ask at once build it once. Whatever `build` raises passes through.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        # What lies here while we hold the lock was left by a build that was killed.
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        try:
            build(partial)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target
