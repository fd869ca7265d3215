"""The search finds nearly the best of all combinations in 12 trials, and always tries the same ones."""

from dataclasses import replace

import pytest
from tqdm import tqdm

from load_tests.tune.grid import SIMULATED, compare
from load_tests.tune.load import Load
from load_tests.tune.objective import objective
from load_tests.tune.search import TRIALS, Trial, best, search
from load_tests.tune.simulated import Simulated, default_config
from load_tests.tune.space import Space, space_for
from load_tests.workload import WORKLOADS, read_workload

SMALL = read_workload(WORKLOADS / "small.yaml")
LOAD = Load(SMALL, users=12)


@pytest.mark.parametrize("name", ["short", "fleet_chats"])
def test_twelve_trials_come_within_five_percent_of_all_combinations(name: str) -> None:
    compared = compare(read_workload(WORKLOADS / f"{name}.yaml"), SIMULATED, users=12, requests=64, seeds=1)
    assert compared.size >= 3 * TRIALS
    assert {objective: gap.found for objective, gap in compared.gaps.items() if gap.found > 0.05} == {}


def found(trials: int, seed: int) -> tuple[Space, list[Trial]]:
    requests = LOAD.requests(40, seed=0)
    space = space_for(default_config(SIMULATED), requests, LOAD.users, SMALL.slo)
    serve = Simulated(LOAD, requests, space, SIMULATED)
    loss = objective("latency", SMALL.slo).loss
    return space, search(space, serve, loss, trials=trials, seed=seed, bar=tqdm(disable=True))


def test_no_choice_is_tried_twice_and_the_default_is_first() -> None:
    space, trials = found(TRIALS, seed=0)
    assert len({tuple(trial.choice.values()) for trial in trials}) == len(trials) == TRIALS
    assert trials[0].choice == space.default
    assert best(trials).loss == min(trial.loss for trial in trials)


def test_the_same_seed_tries_the_same() -> None:
    first, second = ([trial.choice for trial in found(TRIALS, seed=3)[1]] for _ in range(2))
    assert first == second


def test_a_search_may_try_everything() -> None:
    requests = [replace(request, prompt_tokens=9, prefix_tokens=0) for request in LOAD.requests(20, seed=0)]
    space = space_for(default_config(SIMULATED), requests, 1, SMALL.slo)
    serve = Simulated(Load(SMALL, users=1), requests, space, SIMULATED)
    trials = search(space, serve, objective("ttft", SMALL.slo).loss, trials=99, bar=tqdm(disable=True))
    assert len(trials) == space.size < 12
