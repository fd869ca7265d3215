"""The outcome of a tuning run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from load_tests.tune.ablation import Ablation
from load_tests.tune.confirmation import Confirmation
from load_tests.tune.load import Load
from load_tests.tune.machine import Machine
from load_tests.tune.objective import Objective, overshoot_of
from load_tests.tune.search import Trial
from load_tests.tune.space import Space


@dataclass(frozen=True)
class Outcome:
    """Everything that the report of a tuning run says."""

    load: Load
    objective: Objective
    machine: Machine
    space: Space
    trials: Sequence[Trial]
    """In the order in which they were tried."""
    ablation: Ablation
    """On other requests than the trials', so that no setting is credited with luck."""
    confirmation: Confirmation | None
    about: Mapping[str, str]
    """Machine, model and versions, each by its heading."""

    @property
    def settings(self) -> dict[str, str]:
        """The found settings that the default configuration does not have, as parameters of config.pbtxt."""
        return {name: _text(value) for name, value in self.space.settings(self.ablation.choice).items()}

    @property
    def misses_targets(self) -> bool:
        """Whether not even the found settings keep the targets that the objective demands."""
        return self.objective.within_targets and overshoot_of(self.ablation.tuned, self.objective.targets) > 1


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
