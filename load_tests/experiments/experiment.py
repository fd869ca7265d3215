"""What an experiment is: the same requests under several settings, and a claim that the numbers bear out or not."""

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
"""By the label of their arm."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    label: str
    arrivals: Sequence[Arrival]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of `EngineConfig`; the rest is the stage's."""


@dataclass(frozen=True)
class Verdict:
    """A part of the claim, with the numbers that decide it."""

    text: str
    held: bool


class Experiment(ABC):
    """A claim and how to test it. What holds is computed from the results, never written down."""

    name: str
    title: str
    """What the plot shows."""
    claim: str
    source: str
    requests = 4000
    """In the simulator."""

    @abstractmethod
    def arms(self, stage: Stage) -> list[Arm]:
        """What is compared."""

    @abstractmethod
    def columns(self, stage: Stage) -> list[Column]:
        """What the table shows."""

    @abstractmethod
    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        """Whether each part of the claim held."""

    @abstractmethod
    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        """Draw what the claim is about."""
