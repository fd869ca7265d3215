"""How many threads and processes the kernel still lets this user and this container start."""

import contextlib
import re
from pathlib import Path

from inflight.cgroup import control_groups
from scripts.launch.errors import LauncherError

_ROOT_USER = 0
_USERS_LIMIT = re.compile(r"^Max processes +(\d+)", re.MULTILINE)


def check_room_for_tasks(needed: int, root: Path = Path("/")) -> None:
    """Check that so many threads and processes can be started.

    `root` is the root of the file system; another folder in tests. Raises LauncherError.
    """
    room = min([*_left_in_groups(root), *_left_to_user(root)], default=needed)
    if room < needed:
        raise LauncherError(
            f"the server needs {needed} threads and processes, and only {room} more can be started here; raise the "
            "container's limit (docker run --pids-limit), or the user's (ulimit -u)"
        )


def _left_in_groups(root: Path) -> list[int]:
    left = []
    for group in control_groups("pids", root):
        limit, count = group.words("pids.max"), group.words("pids.current")
        if limit and limit != ["max"]:
            left.append(max(0, int(limit[0]) - int(count[0])))
    return left


def _left_to_user(root: Path) -> list[int]:
    user = _user(root / "proc/self")
    limit = _USERS_LIMIT.search((root / "proc/self/limits").read_text())
    if limit is None or user == _ROOT_USER:  # Unlimited, as root always is.
        return []
    return [max(0, int(limit[1]) - sum(_tasks(path) for path in root.glob("proc/[0-9]*") if _user(path) == user))]


def _user(process: Path) -> int | None:
    """The user of a process, or None if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return process.stat().st_uid
    return None


def _tasks(process: Path) -> int:
    """The number of threads of a process; 0 if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return len(list((process / "task").iterdir()))
    return 0
