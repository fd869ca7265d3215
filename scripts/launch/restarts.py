"""Starts a server again when it has died, and says why it died."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Never

from inflight.cgroup import control_groups
from scripts.launch.errors import LauncherError
from scripts.launch.output import say
from scripts.launch.server_process import ServerProcess

# Short, because users wait, and a start takes longer anyway.
_PAUSE_SECONDS = 0.25
# A start that fails keeps the processors busy, and has served nobody.
_LONGEST_PAUSE_SECONDS = 30.0
_SHOWN_LINES = 10


def keep_running(server: ServerProcess, start: Callable[[], None]) -> Never:
    """Start a server, and start it again each time that it ends. `start` returns when it is ready.

    Raises what `start` raises the first time. A setting that is wrong from the beginning would stay wrong.
    """
    kills = out_of_memory_kills()
    start()
    backoff = Backoff()
    death, served = f"{server.name} {server.wait()}", True
    while True:
        before, kills = kills, out_of_memory_kills()
        _report(death, server.log_tail(), kills - before)
        server.kill()
        pause = backoff.pause(served)
        say(f"Starting it again in {pause:g} s")
        time.sleep(pause)
        try:
            start()
            death, served = f"{server.name} {server.wait()}", True
        except LauncherError as error:
            death, served = str(error), False


class Backoff:
    """The pause before a start. It doubles with each start that fails, up to a bound."""

    def __init__(self) -> None:
        self._next = _PAUSE_SECONDS

    def pause(self, served: bool) -> float:
        """Return the seconds to wait. `served`: the server was ready before it died."""
        pause = _PAUSE_SECONDS if served else self._next
        self._next = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return pause


def _report(death: str, log: str, kills: int) -> None:
    say(f"error: {death}. Its last lines:", *(f"  {line}" for line in log.splitlines()[-_SHOWN_LINES:]))
    if kills:
        say(f"The kernel has ended {kills} of the processes here, because they used too much memory")


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """Return how many processes of this control group the kernel has killed so far for lack of memory.

    0 where the kernel does not count them, as outside of any group. `root` is the file system's root, another in tests.
    """
    for group in control_groups("memory", root)[:1]:
        words = group.words("memory.events" if group.version == 2 else "memory.oom_control")
        if "oom_kill" in words:
            return int(words[words.index("oom_kill") + 1])
    return 0
