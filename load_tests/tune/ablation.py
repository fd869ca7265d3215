"""What each setting of a choice brings."""

from collections.abc import Sequence
from dataclasses import dataclass

from tqdm import tqdm

from load_tests.tune.objective import Objective, Served
from load_tests.tune.search import Loss, Serve, Trial
from load_tests.tune.space import Choice, Space

TOLERANCE = 0.01
"""A fraction of the objective. Settings that together bring less stay as the default configuration has them."""


@dataclass(frozen=True)
class Without:
    """A choice with one of its settings returned to the default."""

    name: str
    chosen: str
    default: str
    served: Served


@dataclass(frozen=True)
class Ablation:
    """The results of the default, of a choice, and of the choice without each of its settings."""

    choice: Choice
    default: Served
    tuned: Served
    without: Sequence[Without]

    def gain(self, objective: Objective) -> float:
        """By which fraction the choice is better than the default. The simulator predicts it."""
        return objective.gain(objective.value(self.tuned), objective.value(self.default))

    def brought(self, without: Without, objective: Objective) -> float:
        """By which fraction a setting improves the rest of the choice."""
        return objective.gain(objective.value(self.tuned), objective.value(without.served))


def changed(space: Space, choice: Choice) -> list[str]:
    """The names of the knobs that a choice sets otherwise than the default."""
    return [knob.name for knob in space.knobs if choice[knob.name] != knob.default]


def prune(space: Space, found: Trial, serve: Serve, loss: Loss) -> Choice:
    """Return a choice to the default wherever that costs next to nothing.

    The setting that brings least goes first. All of them together bring less than `TOLERANCE`.
    """
    choice, limit = found.choice, found.loss + TOLERANCE * abs(found.loss)
    while names := changed(space, choice):
        simpler = [{**choice, name: space.default[name]} for name in names]
        losses = [loss(serve(each)) for each in simpler]
        if min(losses) > limit:
            break
        choice = simpler[losses.index(min(losses))]
    return choice


def ablate(space: Space, choice: Choice, serve: Serve) -> Ablation:
    """Serve the load with the default, the choice, and the choice without each of its settings, with a progress bar."""
    default, tuned = serve(space.default), serve(choice)
    without = [
        Without(name, choice[name], space.default[name], serve({**choice, name: space.default[name]}))
        for name in tqdm(changed(space, choice), desc="ablation", unit="setting")
    ]
    return Ablation(choice, default, tuned, without)
