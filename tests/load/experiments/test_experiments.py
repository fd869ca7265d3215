"""Every experiment runs at a small size and gives a verdict for each part of its claim."""

import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from load_tests.experiments.__main__ import draw, main, report
from load_tests.experiments.catalogue import EXPERIMENTS
from load_tests.experiments.experiment import Experiment
from load_tests.experiments.fairness import FairShares
from load_tests.experiments.runs import run
from load_tests.experiments.stage import simulator
from load_tests.experiments.verdict import Outcome


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_an_experiment_reports(experiment: Experiment, tmp_path: Path) -> None:
    stage = replace(simulator(), max_requests=24, length_scale=1 / 4)
    results = run(experiment, stage, [1, 2])
    assert list(results) == [arm.label for arm in experiment.arms(stage, 1)]
    assert all(len(runs) == 2 and all(run.done.all() for run in runs) for runs in results.values())
    text = report(experiment, results, stage)
    verdicts = re.findall(r"^- (confirmed|not confirmed|undecided): ", text, re.MULTILINE)
    assert verdicts == [verdict.outcome for verdict in experiment.verdicts(results, stage)]
    draw(experiment, results, stage, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_a_claim_is_judged_by_its_numbers() -> None:
    experiment, stage = FairShares(), replace(simulator(), max_requests=600)
    results = run(experiment, stage, [1, 2, 3])
    swapped = {"fcfs": results["fair"], "fair": results["fcfs"]}
    assert experiment.verdicts(results, stage)[2].outcome is Outcome.CONFIRMED
    assert experiment.verdicts(swapped, stage)[2].outcome is Outcome.REFUTED


def test_other_processes_find_the_same() -> None:
    experiment, stage = FairShares(), replace(simulator(), max_requests=24)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        apart = run(experiment, stage, [1, 2], pool)
    for label, runs in run(experiment, stage, [1, 2]).items():
        assert [np.array_equal(a.finish, b.finish) for a, b in zip(runs, apart[label], strict=True)] == [True, True]
        # Seeds differ in their requests.
        assert not np.array_equal(runs[0].arrival, runs[1].arrival)


def test_the_real_engine_refuses_what_needs_several_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", "--engine", "fairness", "tensor_parallel"])
    with pytest.raises(SystemExit):
        main()
    assert "tensor_parallel: only in the simulator" in capsys.readouterr().err
