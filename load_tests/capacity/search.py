"""Chooses the loads to measure: ever higher ones until the server is saturated, then loads between good and bad
ones."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

GROWTH = 2.0
"""Factor from one load to the next."""
MIN_GAIN = 0.05
"""Smallest gain in throughput for `GROWTH` times the load. With a smaller gain and slower answers the server is
saturated."""
MIN_DELAY = 0.1
"""Smallest relative increase of the latency that counts as slower answers."""
BAD_LEVELS = 2
"""The rise ends after this many consecutive levels that miss the objective."""
PRECISION = 1.1
"""The search ends when the lowest bad load is at most this many times the highest good load."""


class Outcome(Protocol):
    """The result of a measurement at one load."""

    @property
    def load(self) -> float:
        """Concurrent users, or requests per second."""

    @property
    def throughput(self) -> float:
        """Output tokens per second."""

    @property
    def latency(self) -> float:
        """Latency of an answer, in seconds."""


O = TypeVar("O", bound=Outcome)  # noqa: E741
Measure = Callable[[float], Awaitable[O | None]]
"""Measures a load. Returns None if the time left is too short for it, and raises Interrupted if it is broken off."""


class Interrupted(Exception):
    """A level could not be measured to its end, and no other one can be. The message says why."""


@dataclass(frozen=True)
class Found(Generic[O]):
    """All measured levels, in the order of load."""

    levels: Sequence[O]
    capacity: O | None
    """The highest load that keeps the objective. None if no load does."""
    broken: O | None
    """The lowest bad load above the capacity. None if there is none; the capacity is then a lower bound."""
    ended: str
    """Why the rise ended, or why the search was interrupted."""
    interrupted: bool = False


async def search(measure: Measure[O], good: Callable[[O], bool], start: float, *, whole: bool) -> Found[O]:
    """Measure loads from `start` on.

    Args:
        measure: measures a load.
        good: whether a result keeps the objective.
        start: the lowest load.
        whole: whether loads are whole numbers, such as users.

    If it is interrupted, it returns what is measured. Raises Interrupted if that is nothing.
    """
    levels: list[O] = []
    interrupted = False
    try:
        ended = await _rise(measure, good, start, levels)
        await _narrow(measure, good, levels, whole=whole)
    except Interrupted as reason:
        if not levels:
            raise
        ended, interrupted = str(reason), True
    levels.sort(key=lambda level: level.load)
    return Found(levels, *boundary(levels, good), ended, interrupted)


async def _rise(measure: Measure[O], good: Callable[[O], bool], start: float, levels: list[O]) -> str:
    """Add levels of ever higher load. Return why no higher one follows."""
    ended = None
    while ended is None:
        level = await measure(start * GROWTH ** len(levels))
        if level is None:
            return "the time was too short for more load"
        levels.append(level)
        ended = _why_enough(levels, good)
    return ended


async def _narrow(measure: Measure[O], good: Callable[[O], bool], levels: list[O], *, whole: bool) -> None:
    """Add levels between the highest good load and the lowest bad one above it."""
    while (load := _between(*boundary(levels, good), whole=whole)) is not None:
        level = await measure(load)
        if level is None:
            return
        levels.append(level)


def boundary(levels: Sequence[O], good: Callable[[O], bool]) -> tuple[O | None, O | None]:
    """The highest good level, and the lowest bad level above it.

    A bad level below a good one was measured while the machine was busy with other work: less load never makes answers
    slower.
    """
    capacity = max(filter(good, levels), key=lambda level: level.load, default=None)
    above = [level for level in levels if capacity is None or level.load > capacity.load]
    return capacity, min(above, key=lambda level: level.load, default=None)


def _why_enough(levels: Sequence[O], good: Callable[[O], bool]) -> str | None:
    """Why a higher load would show nothing new. None if it would."""
    if len(levels) >= BAD_LEVELS and not any(map(good, levels[-BAD_LEVELS:])):
        return f"the objective was broken at {BAD_LEVELS} levels in a row"
    if len(levels) < 2:
        return None
    before, last = levels[-2:]
    gained = last.throughput >= before.throughput * (1 + MIN_GAIN)
    delayed = last.latency > before.latency * (1 + MIN_DELAY)
    if gained or not delayed:
        return None
    return f"{GROWTH:g} times the load brought less than {MIN_GAIN:.0%} more throughput, and answers took longer"


def _between(capacity: O | None, broken: O | None, *, whole: bool) -> float | None:
    """The geometric mean of both loads. None if there is no load between them to measure, or they are close enough."""
    if capacity is None or broken is None or broken.load / capacity.load <= PRECISION:
        return None
    middle = math.sqrt(capacity.load * broken.load)
    if not whole:
        return middle
    return None if broken.load - capacity.load <= 1 else float(round(middle))
