"""All that a sweep found out."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from load_tests.capacity.knee import knee
from load_tests.capacity.level import Level
from load_tests.capacity.search import Found
from load_tests.capacity.timeline import Timeline
from load_tests.slo import Slo


@dataclass(frozen=True)
class LoadKind:
    """What is varied."""

    name: str
    """As on the command line."""
    unit: str
    """Behind a number of it, such as `users`."""
    axis: str
    """Under a plot."""
    closed: bool
    """Whether it is users who wait for their answers, in whole numbers."""
    start: float
    """The lowest load."""

    def text(self, load: float) -> str:
        """A load with its unit."""
        unit = self.unit.removesuffix("s") if self.closed and load == 1 else self.unit
        return f"{load:.3g} {unit}"


USERS = LoadKind("users", "users", "users at once (closed loop)", closed=True, start=1)
RATE = LoadKind("rate", "requests/s", "requests sent per second (open loop)", closed=False, start=0.5)


@dataclass(frozen=True)
class Sweep:
    """What was measured, and what with."""

    kind: LoadKind
    slo: Slo
    found: Found[Level]
    about: Mapping[str, str]
    """Workload, server, machine and versions, by what they are called."""
    settings: Mapping[str, str]
    """The parameters of the model's configuration."""
    others: float | None = None
    """Share of the processors that other processes used, 0 to 1; None where the server was not ours to wait for."""
    timeline: Timeline | None = None
    """Requests at the recommended load; None where the server was not ours to trace."""

    @property
    def levels(self) -> list[Level]:
        """In the order of load."""
        return list(self.found.levels)

    @cached_property
    def knee(self) -> Level | None:
        """Where more load stops to bring more throughput."""
        at = knee([level.load for level in self.levels], [level.throughput for level in self.levels])
        return next((level for level in self.levels if level.load == at), None)

    @property
    def capacity(self) -> Level | None:
        """The highest load that keeps the objective."""
        return self.found.capacity

    @property
    def busiest_generator(self) -> float:
        """The largest share of its time that the generator computed, from 0 to 1."""
        return max(repeat.run.generator_busy for level in self.levels for repeat in level.repeats)


def recommended(found: Found[Level]) -> Level:
    """The level to run a server at: the highest that keeps the objective, or where none does, the lowest of all."""
    return found.capacity or found.levels[0]
