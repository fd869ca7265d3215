"""Every experiment runs at a small size and gives a verdict for each part of its claim."""

import re
import subprocess
import sys
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pytest
from matplotlib import pyplot

from load_tests.experiments.__main__ import SIZE, draw, headline, main, report
from load_tests.experiments.catalogue import EXPERIMENTS
from load_tests.experiments.experiment import Experiment
from load_tests.experiments.fairness import FairShares
from load_tests.experiments.runs import run
from load_tests.experiments.stage import simulator
from load_tests.experiments.verdict import Outcome
from tests.eventually import eventually


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_an_experiment_reports(experiment: Experiment, tmp_path: Path) -> None:
    stage = replace(simulator(), max_requests=24, length_scale=1 / 4)
    results = run(experiment, stage, [1, 2])
    assert list(results) == [arm.label for arm in experiment.arms(stage, 1)]
    assert all(len(runs) == 2 and all(run.done.all() for run in runs) for runs in results.values())
    text = report(experiment, results, stage)
    requests = [len(run.arrival) for runs in results.values() for run in runs]
    assert re.search(
        rf"^A run has ({min(requests)}|{min(requests)} to {max(requests)}) requests\.$", text, re.MULTILINE
    )
    verdicts = re.findall(r"^- (confirmed|not confirmed|undecided): ", text, re.MULTILINE)
    assert verdicts == [verdict.outcome for verdict in experiment.verdicts(results, stage)]
    draw(experiment, results, stage, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_every_title_fits_above_its_plot() -> None:
    for experiment in EXPERIMENTS.values():
        figure = pyplot.figure(figsize=SIZE)
        title = headline(figure, experiment).get_window_extent()
        assert figure.bbox.x0 < title.x0 < title.x1 < figure.bbox.x1, experiment.name
        pyplot.close(figure)


def test_a_claim_is_judged_by_its_numbers() -> None:
    experiment, stage = FairShares(), replace(simulator(), max_requests=600)
    results = run(experiment, stage, [1, 2, 3])
    swapped = {"fcfs": results["fair"], "fair": results["fcfs"]}
    assert experiment.verdicts(results, stage)[2].outcome is Outcome.CONFIRMED
    assert experiment.verdicts(swapped, stage)[2].outcome is Outcome.REFUTED


def test_other_processes_find_the_same() -> None:
    experiment, stage = FairShares(), replace(simulator(), max_requests=24)
    with get_context("spawn").Pool(2) as pool:
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


def test_a_folder_without_traces_is_named_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", "arrival_forecast", "--traces", str(tmp_path)])
    assert main() == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert "AzureLLMInferenceTrace_conv.csv" in said[0]


def test_its_processes_end_with_it() -> None:
    command = [sys.executable, "-m", "load_tests.experiments", "fairness"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stderr=subprocess.DEVNULL) as process:
        try:
            # One that tracks their resources comes first.
            assert eventually(lambda: len(psutil.Process(process.pid).children()) > 1, seconds=120)
            others = psutil.Process(process.pid).children()
            process.terminate()
            assert process.wait(120) == 130
        finally:
            process.kill()
    assert not psutil.wait_procs(others, timeout=60)[1]
