"""Starts a server again when it has died, and says why it died."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Never

from inflight.cgroup import control_groups
from scripts.launch.errors import LauncherError
from scripts.launch.server_process import ServerProcess

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
# After so long a run, a death has nothing to do with the one before.
_STEADY_SECONDS = 300.0
_SHOWN_LINES = 10


def keep_running(server: ServerProcess, start: Callable[[], None]) -> Never:
    """Start a server, and start it again each time that it ends.

    The pause before a start doubles with each death, up to 30 seconds. `start` starts the server and returns when it is
    ready.

    Raises what `start` raises the first time. A setting that is wrong from the beginning would stay wrong.
    """
    kills = out_of_memory_kills()
    start()
    pause, since = _FIRST_PAUSE_SECONDS, time.monotonic()
    death = f"{server.name} {server.wait()}"
    while True:
        before, kills = kills, out_of_memory_kills()
        _report(death, server.log_tail(), kills - before)
        server.kill()
        if time.monotonic() - since > _STEADY_SECONDS:
            pause = _FIRST_PAUSE_SECONDS
        print(f"Starting it again in {pause:g} s", flush=True)
        time.sleep(pause)
        pause, since = min(2 * pause, _LONGEST_PAUSE_SECONDS), time.monotonic()
        try:
            start()
            death = f"{server.name} {server.wait()}"
        except LauncherError as error:
            death = str(error)


def _report(death: str, log: str, kills: int) -> None:
    print(f"error: {death}. Its last lines:", *log.splitlines()[-_SHOWN_LINES:], sep="\n  ")
    if kills:
        print(f"The kernel has ended {kills} of the processes here, because they used too much memory")


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """Return how many processes of this control group the kernel has killed so far for lack of memory.

    0 where the kernel does not count them, as outside of any group. `root` is the file system's root, another in tests.
    """
    for group in control_groups("memory", root)[:1]:
        words = group.words("memory.events" if group.version == 2 else "memory.oom_control")
        if "oom_kill" in words:
            return int(words[words.index("oom_kill") + 1])
    return 0
