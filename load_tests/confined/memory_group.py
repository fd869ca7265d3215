"""A control group of the kernel with a limit of memory. Making one needs root."""

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inflight.cgroup import ControlGroup, control_groups
from scripts.launch.errors import LauncherError

_END_SECONDS = 10.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class MemoryGroup:
    """A group. `memory_group` makes one."""

    group: ControlGroup

    def inside(self, command: list[str]) -> list[str]:
        """Return the command that runs `command` in this group."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.group.folder / "cgroup.procs"), *command]

    def used_bytes(self) -> int:
        """Return the memory of the group that the kernel cannot drop: not that of cached files."""
        words = self.group.words("memory.stat")
        names = ("total_rss", "total_shmem") if self.group.version == 1 else ("anon", "shmem")
        return sum(int(words[words.index(name) + 1]) for name in names)

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed, because they needed more than the limit."""
        words = self.group.words("memory.oom_control" if self.group.version == 1 else "memory.events")
        return int(words[words.index("oom_kill") + 1])


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """A group below that of this process, with a limit in bytes. Processes that are left in it are killed at the end.

    Raises LauncherError if this process may not make one.
    """
    own = next(iter(control_groups("memory", Path("/"))), None)
    if own is None or not os.access(own.folder, os.W_OK):
        raise LauncherError("this needs root and the kernel's control groups for memory")
    group = ControlGroup(own.folder / f"inflight-{uuid.uuid4().hex}", own.version)
    try:
        group.folder.mkdir()
        name = "memory.limit_in_bytes" if own.version == 1 else "memory.max"
        (group.folder / name).write_text(str(limit))
        yield MemoryGroup(group)
    except OSError as error:
        raise LauncherError(f"no limit of memory can be set: {error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            _end_processes(group)
            group.folder.rmdir()


def _end_processes(group: ControlGroup) -> None:
    """Kill the processes of a group: a compiler, say, whose model was killed."""
    for _ in range(round(_END_SECONDS / _POLL_SECONDS)):
        processes = group.words("cgroup.procs")
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
