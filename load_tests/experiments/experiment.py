"""The parts of an experiment: the same requests under several settings, and a claim that the results may confirm."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from load_tests.experiments.stage import Stage
from load_tests.simulate.report import Column
from load_tests.simulate.result import Result
from load_tests.traffic import Arrival

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Results: TypeAlias = Mapping[str, Result]
"""Each arm's result by the label of the arm."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    label: str
    arrivals: Sequence[Arrival]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EngineConfig`. The stage sets all other fields."""


@dataclass(frozen=True)
class Verdict:
    """A part of the claim, with the numbers that decide it."""

    text: str
    confirmed: bool


class Experiment(ABC):
    """A claim and a test of it. The code computes each verdict from the results."""

    name: str
    title: str
    """What the plot shows."""
    claim: str
    source: str
    requests = 4000
    """Number of requests in the simulator."""

    @abstractmethod
    def arms(self, stage: Stage) -> list[Arm]:
        """The settings to compare."""

    @abstractmethod
    def columns(self, stage: Stage) -> list[Column]:
        """The columns of the table."""

    @abstractmethod
    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        """Decide from the results whether each part of the claim is confirmed."""

    @abstractmethod
    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        """Draw the quantity that the claim is about."""
