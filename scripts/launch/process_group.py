"""The processes of a server: those of its process group, and those that they have started."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts.launch.errors import LauncherError

_KILL_SECONDS = 5.0


def kill_group(name: str, leader: subprocess.Popen[str]) -> None:
    """Kill a process group. Raises LauncherError if one of its processes does not end."""
    deadline = time.monotonic() + _KILL_SECONDS
    while leader.poll() is None or group_members(leader.pid):
        if time.monotonic() > deadline:
            raise LauncherError(f"processes {group_members(leader.pid)} of {name} do not end on SIGKILL")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        time.sleep(0.02)


def group_members(group: int) -> list[int]:
    """Return the processes of a group, without zombies, which only wait for init and hold no resources."""
    return [pid for pid, _, process_group in _processes() if process_group == group]


def started_by_group(group: int) -> list[int]:
    """Return the processes outside of a group that its members have started."""
    processes = list(_processes())
    members = {pid for pid, _, process_group in processes if process_group == group}
    return [pid for pid, parent, process_group in processes if parent in members and process_group != group]


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield the ids of each process, of its parent and of its group, except those of zombies."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process may end after it was listed and before its status is read.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, parent, group = stat.read_text().rpartition(")")[2].split()[:3]
            if state != "Z":
                yield int(stat.parent.name), int(parent), int(group)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that have not ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def proportional_bytes(pid: int) -> int:
    """Resident memory of a process, with each shared page divided by the number of its users. 0 if the process has
    ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
