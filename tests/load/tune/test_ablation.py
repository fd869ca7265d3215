"""Settings that bring nothing return to their defaults, and the others are credited with what they bring."""

from load_tests.tune.ablation import ablate, changed, prune
from load_tests.tune.grid import SIMULATED
from load_tests.tune.load import Load
from load_tests.tune.objective import objective
from load_tests.tune.search import Trial
from load_tests.tune.simulated import Simulated, default_config
from load_tests.tune.space import space_for
from load_tests.workload import WORKLOADS, read_workload

SMALL = read_workload(WORKLOADS / "small.yaml")
LOAD = Load(SMALL, users=24)
REQUESTS = LOAD.requests(80, seed=0)
SPACE = space_for(default_config(SIMULATED), REQUESTS, LOAD.users, SMALL.slo)
SERVE = Simulated(LOAD, REQUESTS, SPACE, SIMULATED)
AIM = objective("ttft", SMALL.slo, LOAD.users)
# The first one delays every first token. With as many slots as users, the order of requests matters little.
WORSE = {**SPACE.default, "max_num_seqs": "8"}


def test_what_brings_nothing_returns_to_the_default() -> None:
    same = {**SPACE.default, "max_num_batched_tokens": "2048"}
    served = SERVE(same)
    assert AIM.value(served) < AIM.value(SERVE(SPACE.default))
    with_ballast = {**same, "long_prefill_token_threshold": "256"}
    served = SERVE(with_ballast)
    choice = prune(SPACE, Trial(with_ballast, served, AIM.loss(served)), SERVE, AIM.loss)
    assert changed(SPACE, choice) == ["max_num_batched_tokens"]


def test_a_harmful_setting_returns_to_the_default() -> None:
    served = SERVE(WORSE)
    choice = prune(SPACE, Trial(WORSE, served, AIM.loss(served)), SERVE, AIM.loss)
    assert choice == SPACE.default


def test_each_setting_is_credited_with_what_is_lost_without_it() -> None:
    ablation = ablate(SPACE, WORSE, SERVE)
    (without,) = ablation.without
    assert (without.name, without.default, without.chosen) == ("max_num_seqs", "64", "8")
    assert ablation.brought(without, AIM) == ablation.gain(AIM) < -1
