"""One fault under load: what the users notice, and when answers are right again."""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from load_tests.chaos.faults import Fault, Stage
from load_tests.chaos.users import HANGS, Users

_CALM_SECONDS = 3.0
_SETTLE_SECONDS = 3.0
_BACK_SECONDS = 180.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Outcome:
    """What was seen of one fault."""

    failed: int
    """Requests that ran when it began and ended with an error."""
    running: int
    """Requests that ran when it began."""
    last_error: float
    """Seconds until the last of these errors. 0 if there was none."""
    wrong: int
    """Requests, then or later, with a piece of text that differs from the right answer."""
    hung: int
    """Requests that got neither an answer nor an error."""
    unhealthy: bool
    """Whether the gateway said so, at least once before answers were right again."""
    back: float | None
    """Seconds until each door had given a right answer to a request sent after the fault, or after its end if it lasts.
    None: it never did."""
    left: Sequence[str]
    """Processes and shared memory that were not there before."""


class Health:
    """Asks the gateway ten times a second whether the service is healthy."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.unhealthy_at: list[float] = []

    async def watch(self) -> None:
        """Ask until this is cancelled."""
        while True:
            if not await self._stage.service.is_healthy():
                self.unhealthy_at.append(time.monotonic())
            await asyncio.sleep(_POLL_SECONDS)


async def experiment(fault: Fault, stage: Stage, users: Users, health: Health) -> Outcome:
    """Cause a fault under load, and watch until answers are right again."""
    await asyncio.sleep(_CALM_SECONDS)
    commands, regions = _commands(stage), len(stage.service.shared_memory())
    users.asked.clear()
    begun = time.monotonic()
    async with fault.begin(stage):
        await asyncio.sleep(fault.seconds)
    over = await _back(users, time.monotonic())
    back = None if over is None else over - begun
    noticed = time.monotonic()
    await asyncio.sleep(_SETTLE_SECONDS)
    while min(users.running.values()) <= noticed:  # Each ends after `LIMIT_SECONDS` at the latest.
        await asyncio.sleep(_POLL_SECONDS)
    asked = list(users.asked)
    ran = [request for request in asked if request.begun <= begun]
    failed = [request for request in ran if request.error is not None]
    left = sorted(_commands(stage, without=commands))
    if (more := len(stage.service.shared_memory()) - regions) > 0:
        left.append(f"{more} files in /dev/shm")
    ended = begun + (back if back is not None else _BACK_SECONDS)
    return Outcome(
        failed=len(failed),
        running=len(ran),
        last_error=max((request.ended - begun for request in failed), default=0.0),
        wrong=sum(request.wrong for request in asked),
        hung=sum(request.error == HANGS for request in asked),
        unhealthy=any(begun <= at <= ended for at in health.unhealthy_at),
        back=back,
        left=left,
    )


async def _back(users: Users, since: float) -> float | None:
    """Wait until each door has given a right answer to a request sent after `since`. Return when."""
    doors = {door.name for door in users.doors}
    while (now := time.monotonic()) < since + _BACK_SECONDS:
        if {request.door for request in users.asked if request.right and request.begun > since} >= doors:
            return now
        await asyncio.sleep(_POLL_SECONDS)
    return None


def _commands(stage: Stage, without: Collection[str] = ()) -> list[str]:
    """The commands of the service's processes, each as often as it runs, less those of `without`."""
    commands = [command.split()[0].rpartition("/")[2] for command in stage.service.processes().values() if command]
    for command in without:
        if command in commands:
            commands.remove(command)
    return commands
