"""Finds good settings in few simulations."""

import math
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
    Learning Algorithms' (NeurIPS 2012). It is told losses as `_told` writes them.

    The same seed tries the same choices. There are fewer trials if the space is smaller.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=_sampler(seed))
    for guess in space.guesses():
        study.enqueue_trial({knob.name: _parameter(knob, guess[knob.name]) for knob in space.knobs})
    tried: dict[tuple[str, ...], Trial] = {}
    untold: list[tuple[optuna.Trial, float]] = []
    num_guesses = len({tuple(guess.values()) for guess in space.guesses()})
    best_guess = math.inf
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
        untold.append((asked, tried[key].loss))
        if len(tried) == num_guesses:
            best_guess = best(tried.values()).loss
        if len(tried) >= num_guesses:
            for each, found in untold:
                study.tell(each, _told(found, best_guess))
            untold.clear()
        repeats = 0
        bar.update()
    return list(tried.values())


def _told(loss: float, best_guess: float) -> float:
    """Return how much worse a loss is than that of the best guess, in tenths of it, and the logarithm for worse ones.

    Beside a loss of fifty times the best, a Gaussian process would take the differences between good choices for noise.
    """
    worse = (loss - best_guess) / (abs(best_guess) / 10 or 1.0)
    return math.log1p(worse) if worse > 0 else worse


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
