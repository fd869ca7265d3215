"""Every experiment runs at a small size and gives a verdict for each part of its claim."""

from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.experiments.__main__ import draw, report, run
from load_tests.experiments.catalogue import EXPERIMENTS
from load_tests.experiments.experiment import Experiment
from load_tests.experiments.fairness import FairShares
from load_tests.experiments.stage import simulator


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_an_experiment_reports(experiment: Experiment, tmp_path: Path) -> None:
    stage = replace(simulator(), max_requests=24, length_scale=1 / 4)
    results = run(experiment, stage)
    assert list(results) == [arm.label for arm in experiment.arms(stage)]
    assert all(result.done.all() for result in results.values())
    text = report(experiment, results, stage)
    assert text.count("- confirmed: ") + text.count("- not confirmed: ") == len(experiment.verdicts(results, stage))
    draw(experiment, results, stage, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_a_claim_is_judged_by_its_numbers() -> None:
    experiment, stage = FairShares(), replace(simulator(), max_requests=600)
    results = run(experiment, stage)
    swapped = {"fcfs": results["fair"], "fair": results["fcfs"]}
    assert experiment.verdicts(results, stage)[2].confirmed
    assert not experiment.verdicts(swapped, stage)[2].confirmed
