"""Finds good settings in few simulations."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import optuna
from tqdm import tqdm

from load_tests.tune.objective import Served
from load_tests.tune.space import Choice, Knob, Space

TRIALS = 12
_GUESSES_BEFORE_MODEL = 5
_MAX_REPEATS = 100
"""How often in a row the sampler may propose what was tried before. The search ends then."""

Serve = Callable[[Choice], Served]
"""Serves the load with the settings of a choice."""
Loss = Callable[[Served], float]


@dataclass(frozen=True)
class Trial:
    """A choice and its result. A lower loss is better."""

    choice: Choice
    served: Served
    loss: float


def search(space: Space, serve: Serve, loss: Loss, *, trials: int = TRIALS, seed: int = 0, bar: tqdm) -> list[Trial]:
    """Try choices, the space's guesses first, and return them in the order in which they were tried.

    A Gaussian process then proposes what to try, as in Snoek et al., 'Practical Bayesian Optimization of Machine
    Learning Algorithms' (NeurIPS 2012). The same seed tries the same choices. There are fewer trials if the space is
    smaller.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=_sampler(seed))
    for guess in space.guesses():
        study.enqueue_trial({knob.name: _parameter(knob, guess[knob.name]) for knob in space.knobs})
    tried: dict[tuple[str, ...], Trial] = {}
    repeats = 0
    while len(tried) < min(trials, space.size) and repeats < _MAX_REPEATS:
        asked = study.ask()
        choice = {knob.name: _suggest(asked, knob) for knob in space.knobs}
        key = tuple(choice.values())
        if key in tried:
            repeats += 1
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            continue
        served = serve(choice)
        tried[key] = Trial(choice, served, loss(served))
        study.tell(asked, tried[key].loss)
        repeats = 0
        bar.update()
    return list(tried.values())


def best(trials: Iterable[Trial]) -> Trial:
    """The trial with the lowest loss; of equals, the first."""
    return min(trials, key=lambda trial: trial.loss)


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=_GUESSES_BEFORE_MODEL)


def _parameter(knob: Knob, label: str) -> int | str:
    """The value of a knob for optuna, which knows ordered values by their position."""
    return list(knob.values).index(label) if knob.ordered else label


def _suggest(trial: optuna.Trial, knob: Knob) -> str:
    labels = list(knob.values)
    if knob.ordered:
        return labels[trial.suggest_int(knob.name, 0, len(labels) - 1)]
    return trial.suggest_categorical(knob.name, labels)
