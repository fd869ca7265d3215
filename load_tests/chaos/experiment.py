"""One fault under load: what the users notice, and when answers are right again."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from load_tests.chaos.faults import Fault
from load_tests.chaos.service import Service
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
    slowest_error: float
    """The longest time in seconds from the fault, or from the request if it came later, until an error. 0: no error."""
    slowest_answer: float
    """The longest time in seconds from the fault until the answer to a request that ran when it began. 0: no answer."""
    wrong: int
    """Requests, then or later, with a piece of text that differs from the right answer."""
    hung: int
    """Requests that got neither an answer nor an error."""
    unhealthy: bool
    """Whether the gateway said so, at least once before answers were right again."""
    start: float
    """Seconds from the start of a new tritonserver or gateway until it was ready. 0 if none was started."""
    back: float | None
    """Seconds until each door had given a right answer to a request sent after the fault, or after its end if it lasts.
    None: it never did."""
    left: Sequence[str]
    """Processes and shared memory that were not there before."""


class Health:
    """Asks ten times a second whether the service is healthy, and whether Triton is ready."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.unhealthy_at: list[float] = []
        """When it was not, according to the gateway, in seconds of `time.monotonic`."""
        self.down_at: list[float] = []
        """When Triton was not ready."""

    async def watch(self) -> None:
        """Ask until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._note(self.unhealthy_at, self._service.is_healthy))
            group.create_task(self._note(self.down_at, lambda: self._service.is_started(self._service.server)))

    async def _note(self, times: list[float], is_well: Callable[[], Awaitable[bool]]) -> None:
        while True:
            if not await is_well():
                times.append(time.monotonic())
            await asyncio.sleep(_POLL_SECONDS)


async def experiment(fault: Fault, service: Service, users: Users, health: Health) -> Outcome:
    """Cause a fault under load, and watch until answers are right again."""
    await asyncio.sleep(_CALM_SECONDS + random.random())  # So that it comes at any moment of a step.
    commands, regions = _commands(service), len(service.shared_memory())
    users.asked.clear()
    begun = time.monotonic()
    async with fault.begin(service):
        await asyncio.sleep(fault.seconds)
    over = await _back(users, time.monotonic())
    back = None if over is None else over - begun
    await service.wait_taking_part()
    noticed = time.monotonic()
    await asyncio.sleep(_SETTLE_SECONDS)
    while min(users.running.values()) <= noticed:  # Each ends after `LIMIT_SECONDS` at the latest.
        await asyncio.sleep(_POLL_SECONDS)
    asked = list(users.asked)
    ran = [request for request in asked if request.begun <= begun]
    failed = [request for request in ran if request.error is not None]
    left = sorted(_commands(service, without=commands))
    if (more := len(service.shared_memory()) - regions) > 0:
        left.append(f"{more} files in /dev/shm")
    ended = begun + (back if back is not None else _BACK_SECONDS)
    unhealthy, down = ([at for at in times if begun <= at <= ended] for times in (health.unhealthy_at, health.down_at))
    return Outcome(
        failed=len(failed),
        running=len(ran),
        slowest_error=max((r.ended - max(r.begun, begun) for r in asked if r.error is not None), default=0.0),
        slowest_answer=max((request.ended - begun for request in ran if request.error is None), default=0.0),
        wrong=sum(request.wrong for request in asked),
        hung=sum(request.error == HANGS for request in asked),
        unhealthy=bool(unhealthy),
        start=0.0 if back is None else _start(service, begun, unhealthy, down),
        back=back,
        left=left,
    )


def _start(service: Service, begun: float, unhealthy: Sequence[float], down: Sequence[float]) -> float:
    """The time of the longer start since `begun`, given when the gateway and Triton were not ready."""
    starts = [0.0]
    for started, not_ready in (
        (service.triton_started(), down),
        (service.gateway_started(), unhealthy),
    ):
        if started > begun and not_ready:
            starts.append(max(not_ready) - started)
    return max(starts)


async def _back(users: Users, since: float) -> float | None:
    """Wait until each door has given a right answer to a request sent after `since`. Return when."""
    doors = {door.name for door in users.doors}
    while (now := time.monotonic()) < since + _BACK_SECONDS:
        if {request.door for request in users.asked if request.right and request.begun > since} >= doors:
            return now
        await asyncio.sleep(_POLL_SECONDS)
    return None


def _commands(service: Service, without: Collection[str] = ()) -> list[str]:
    """The names of the service's processes, each as often as it runs, less those of `without`."""
    names = [_name(command.split()) for command in service.processes().values() if command]
    for name in without:
        if name in names:
            names.remove(name)
    return names


def _name(command: Sequence[str]) -> str:
    """The module that Python runs, or else the program."""
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1]
    return command[0].rpartition("/")[2]
