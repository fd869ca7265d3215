"""Runs the arms of an experiment."""

from collections.abc import Sequence
from functools import partial
from multiprocessing.pool import Pool

from tqdm import tqdm

from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.simulate.result import Result


def run(experiment: Experiment, stage: Stage, seeds: Sequence[int], pool: Pool | None = None) -> Results:
    """Serve the requests of every arm with every seed, with a progress bar. The pool's processes share the work."""
    arms = [arm for seed in seeds for arm in experiment.arms(stage, seed)]
    each = map if pool is None else pool.imap
    bar = tqdm(each(partial(_serve, stage), arms), total=len(arms), unit="run", desc=experiment.name, leave=False)
    results: dict[str, list[Result]] = {}
    for arm, result in zip(arms, bar, strict=True):
        results.setdefault(arm.label, []).append(result)
    return results


def _serve(stage: Stage, arm: Arm) -> Result:
    return (arm.serve or stage.run)(arm.arrivals, arm.settings)
