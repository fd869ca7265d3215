"""The result of a sweep."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from load_tests.capacity.knee import knee
from load_tests.capacity.level import Level, load_text
from load_tests.capacity.search import Found
from load_tests.capacity.timeline import Timeline
from load_tests.slo import Slo


@dataclass(frozen=True)
class LoadKind:
    """A kind of load that a sweep can vary."""

    name: str
    """Its name on the command line."""
    unit: str
    """The unit after a number, such as `users`."""
    axis: str
    """Label of the axis in plots."""
    closed: bool
    """Whether the load is a whole number of users who wait for their answers."""
    start: float
    """The lowest load."""

    def text(self, load: float) -> str:
        """A load with its unit."""
        unit = self.unit.removesuffix("s") if self.closed and load == 1 else self.unit
        return f"{load_text(load)} {unit}"


USERS = LoadKind("users", "users", "users at once (closed loop)", closed=True, start=1)
RATE = LoadKind("rate", "requests/s", "requests sent per second (open loop)", closed=False, start=0.5)


@dataclass(frozen=True)
class Sweep:
    """The measurements of a sweep and the conditions they were taken under."""

    kind: LoadKind
    slo: Slo
    found: Found[Level]
    about: Mapping[str, str]
    """Workload, server, machine and versions, each by its heading in the report."""
    settings: Mapping[str, str]
    """The parameters of the model's configuration."""
    others: float | None = None
    """Fraction of the processors that other processes used, 0 to 1. None if the sweep did not start the server."""
    timeline: Timeline | None = None
    """Requests at the recommended load. None if the sweep did not start the server, so that it could not trace it."""

    @property
    def levels(self) -> list[Level]:
        """The levels in the order of load."""
        return list(self.found.levels)

    @cached_property
    def knee(self) -> Level | None:
        """The level from which on more load brings hardly any more throughput."""
        at = knee([level.load for level in self.levels], [level.throughput for level in self.levels])
        return next((level for level in self.levels if level.load == at), None)

    @property
    def capacity(self) -> Level | None:
        """The highest level that keeps the objective."""
        return self.found.capacity

    @property
    def has_own_targets(self) -> bool:
        """Whether requests have targets for their first tokens that replace the objective's."""
        records = (record for level in self.levels for repeat in level.repeats for record in repeat.run.records)
        return any(record.target_ttft is not None for record in records)

    @property
    def busiest_generator(self) -> float:
        """The highest fraction of its time that the load generator computed at any level, 0 to 1."""
        return max(repeat.run.generator_busy for level in self.levels for repeat in level.repeats)


def recommended(found: Found[Level]) -> Level:
    """The level to run a server at: the highest that keeps the objective, or the lowest of all if none does."""
    return found.capacity or found.levels[0]
