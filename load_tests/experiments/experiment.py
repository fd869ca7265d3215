"""The parts of an experiment: the same requests under several settings, and a claim that the results may confirm."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from load_tests.experiments.estimate import estimate
from load_tests.experiments.stage import Serve, Stage
from load_tests.experiments.verdict import Verdict
from load_tests.simulate.report import Column
from load_tests.simulate.result import Result
from load_tests.traffic import Arrival

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Results: TypeAlias = Mapping[str, Sequence[Result]]
"""Each arm's results, one for each seed, by the label of the arm."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    label: str
    arrivals: Sequence[Arrival]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EngineConfig`. The stage sets all other fields."""
    serve: Serve | None = None
    """Serves the requests. None: as the stage does."""


class Experiment(ABC):
    """A claim and a test of it. The code computes each verdict from the results."""

    name: str
    title: str
    """What the plot shows."""
    claim: str
    source: str
    requests = 600
    """Number of requests in the simulator, with each seed."""
    simulated_only = False
    """Whether it needs what `--engine` does not have: several machines, or knowledge of the future."""

    @abstractmethod
    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        """The settings to compare, with requests that follow from the seed. All seeds have the same labels."""

    @abstractmethod
    def columns(self, stage: Stage) -> list[Column]:
        """The columns of the table."""

    def rows(self, results: Results, stage: Stage) -> dict[str, list[str]]:
        """The rows of the table, by label: by default one for each arm."""
        columns = self.columns(stage)
        return {
            label: [format(estimate(column.value, runs), column.form) for column in columns]
            for label, runs in results.items()
        }

    @abstractmethod
    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        """Decide from the results whether each part of the claim is confirmed."""

    @abstractmethod
    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        """Draw the quantity that the claim is about."""
