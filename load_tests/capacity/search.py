"""Which loads to measure: ever more until the server has enough, then between the last good and the first bad."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

GROWTH = 2.0
"""From one load to the next."""
MIN_GAIN = 0.05
"""Of throughput for `GROWTH` times the load; where it is less and answers take longer the server is saturated."""
MIN_DELAY = 0.1
"""By how much answers take longer then, as a share."""
BAD_LEVELS = 2
"""So many in a row out of the objective end the rise."""
PRECISION = 1.1
"""The first bad load over the last good one, where the search between them ends."""


class Outcome(Protocol):
    """What came of a load."""

    @property
    def load(self) -> float:
        """Users at once, or requests per second."""

    @property
    def throughput(self) -> float:
        """Output tokens per second."""

    @property
    def latency(self) -> float:
        """Seconds that an answer takes."""


O = TypeVar("O", bound=Outcome)  # noqa: E741
Measure = Callable[[float], Awaitable[O | None]]
"""Measures a load; None where the time is too short for that."""


@dataclass(frozen=True)
class Found(Generic[O]):
    """All that was measured, in the order of load."""

    levels: Sequence[O]
    capacity: O | None
    """The highest load that keeps the objective; None where none does."""
    broken: O | None
    """The lowest load above that; None where there is none, and capacity is at least what was found."""
    ended: str
    """Why the rise ended."""


async def search(measure: Measure[O], good: Callable[[O], bool], start: float, *, whole: bool) -> Found[O]:
    """Measure loads from `start` on.

    Args:
        measure: measures a load.
        good: whether what came of it is within the objective.
        start: the lowest load.
        whole: whether loads are whole numbers, such as users.
    """
    levels: list[O] = []
    ended = None
    while ended is None:
        level = await measure(start * GROWTH ** len(levels))
        if level is None:
            ended = "the time was too short for more load"
            break
        levels.append(level)
        ended = _why_enough(levels, good)
    while (load := _between(*boundary(levels, good), whole=whole)) is not None:
        level = await measure(load)
        if level is None:
            break
        levels.append(level)
    levels.sort(key=lambda level: level.load)
    return Found(levels, *boundary(levels, good), ended)


def boundary(levels: Sequence[O], good: Callable[[O], bool]) -> tuple[O | None, O | None]:
    """The highest good level, and the lowest bad one above it.

    A bad level below a good one met a machine that had other things to do, as less load never makes answers slower.
    """
    capacity = max(filter(good, levels), key=lambda level: level.load, default=None)
    above = [level for level in levels if capacity is None or level.load > capacity.load]
    return capacity, min(above, key=lambda level: level.load, default=None)


def _why_enough(levels: Sequence[O], good: Callable[[O], bool]) -> str | None:
    """Why more load would tell nothing new; None where it would."""
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
    """The geometric middle; None where there is nothing between that matters."""
    if capacity is None or broken is None or broken.load / capacity.load <= PRECISION:
        return None
    middle = math.sqrt(capacity.load * broken.load)
    if not whole:
        return middle
    return None if broken.load - capacity.load <= 1 else float(round(middle))
