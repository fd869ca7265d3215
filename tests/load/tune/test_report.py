"""The report, the plot and the variant of the configuration, without a server."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from tqdm import tqdm
from tritonclient.grpc import model_config_pb2

from load_tests.simulate.step_cost import StepCost
from load_tests.tune import __main__ as tune
from load_tests.tune.ablation import ablate
from load_tests.tune.confirmation import DEFAULT, TUNED, Confirmation
from load_tests.tune.grid import SIMULATED
from load_tests.tune.load import Load
from load_tests.tune.machine import Machine, read_machine
from load_tests.tune.objective import objective
from load_tests.tune.outcome import Outcome
from load_tests.tune.report import summary, write_outcome
from load_tests.tune.search import search
from load_tests.tune.simulated import Simulated, default_config
from load_tests.tune.space import space_for
from load_tests.workload import WORKLOADS, read_workload
from serving.settings import read_settings
from tests.load.synthetic_runs import run_of

SMALL = read_workload(WORKLOADS / "small.yaml")
LOAD = Load(SMALL, users=4)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """Settings that are better than a default whose steps are too small."""
    requests = LOAD.requests(24, seed=0)
    base = replace(default_config(SIMULATED), max_num_batched_tokens=16)
    space = space_for(base, requests, LOAD.users, SMALL.slo)
    serve, aim = Simulated(LOAD, requests, space, SIMULATED), objective("throughput", SMALL.slo)
    trials = search(space, serve, aim.loss, trials=3, bar=tqdm(disable=True))
    choice = {**space.default, "max_num_batched_tokens": "512", "scheduling_policy": "slo"}
    return Outcome(LOAD, aim, SIMULATED, space, trials, ablate(space, choice, serve), None, {"cpu": "simulated"})


def test_the_variant_has_the_settings_in_place_of_the_default(outcome: Outcome, tmp_path: Path) -> None:
    variant = write_outcome(outcome, tmp_path)
    assert variant.name == "small-throughput.pbtxt"
    assert variant.read_text().startswith("# Found by `make tune` for throughput under small with 4 users")
    config = text_format.Parse(variant.read_text(), model_config_pb2.ModelConfig())
    engine, _ = read_settings({name: value.string_value for name, value in config.parameters.items()})
    assert (engine.max_num_batched_tokens, engine.scheduling_policy, engine.target_ttft_ms) == (512, "slo", 1000.0)
    assert engine.max_num_seqs == outcome.space.base.max_num_seqs


def test_the_report_says_what_each_setting_brings(outcome: Outcome, tmp_path: Path) -> None:
    write_outcome(outcome, tmp_path)
    report = (tmp_path / "report.md").read_text()
    rows = [line.split(" | ")[0] for line in report.splitlines() if line.startswith("| ")]
    brought = ["| none: the default", "| max_num_batched_tokens", "| scheduling_policy", "| all of them"]
    assert [row for row in rows if row in brought] == brought
    assert "On the real server" not in report
    assert summary(outcome) in report
    assert (tmp_path / "settings.png").stat().st_size > 1000
    assert read_machine(tmp_path / "machine.json") == SIMULATED


def test_a_default_that_stays_is_not_to_be_copied(outcome: Outcome, tmp_path: Path) -> None:
    write_outcome(outcome, tmp_path)
    assert "copy `small-throughput.pbtxt`" in (tmp_path / "report.md").read_text()
    serve = Simulated(LOAD, LOAD.requests(24, seed=0), outcome.space, SIMULATED)
    write_outcome(replace(outcome, ablation=ablate(outcome.space, outcome.space.default, serve)), tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "The default configuration stays" in report
    assert "copy" not in report


def test_the_report_compares_what_was_predicted_and_measured(outcome: Outcome, tmp_path: Path) -> None:
    measured = {DEFAULT: [run_of(100), run_of(110)], TUNED: [run_of(200), run_of(220)]}
    predicted = {DEFAULT: [outcome.ablation.default], TUNED: [outcome.ablation.tuned]}
    confirmation = Confirmation(measured, predicted, others=0.25)
    assert confirmation.measured_gain(outcome.objective) == pytest.approx(1.0)
    assert confirmation.predicted_gain(outcome.objective) == pytest.approx(outcome.ablation.gain(outcome.objective))
    ratio = outcome.objective.value(outcome.ablation.tuned) / outcome.objective.value(outcome.ablation.default)
    assert confirmation.difference(outcome.objective) == pytest.approx(2 / ratio - 1)
    write_outcome(replace(outcome, confirmation=confirmation), tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "Measured gain: 100.0%" in report
    assert f"{confirmation.difference(outcome.objective):+.1%}" in report


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tune", *arguments])
    return tune.main()


def test_the_command_tunes_for_a_known_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    machine = tmp_path / "machine.json"
    Machine(StepCost(per_step=1e-2, per_token=1e-4, per_cached_token=0.0), 10_000).write(machine)
    options = ("--users", "4", "--requests", "24", "--trials", "3", "--no-confirm")
    arguments = ("short", "--objective", "latency", "--machine", str(machine), "--results", str(tmp_path), *options)
    assert command(monkeypatch, *arguments) == 0
    (folder,) = tmp_path.glob("tune-short-latency-*")
    assert {path.name for path in folder.iterdir()} == {
        *("report.md", "settings.png", "machine.json", "short-latency.pbtxt")
    }
    said = capsys.readouterr().out
    assert "latency under short with 4 users" in said
    assert ("Settings: " in said) == ("The default configuration stays" not in said)


@pytest.mark.parametrize(
    "text",
    [
        '{"cost": {}}',
        '{"cost": [], "kv_cache_tokens": 9}',
        '{"cost": {"per_step": "a", "per_token": 0, "per_cached_token": 0}, "kv_cache_tokens": 9}',
        '{"cost": {"per_step": -1, "per_token": 0, "per_cached_token": 0}, "kv_cache_tokens": 9}',
    ],
)
def test_a_machine_that_is_none_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    machine = tmp_path / "machine.json"
    machine.write_text(text)
    assert command(monkeypatch, "short", "--machine", str(machine), "--no-confirm") == 1
    assert capsys.readouterr().err.startswith(f"error: {machine} is no file that `make tune` wrote")


@pytest.mark.parametrize("arguments", [("nowhere",), ("all",), ("short", "--users", "0"), ("short", "--rate", "-1")])
def test_nonsense_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit):
        command(monkeypatch, *arguments)
    assert "error: argument" in capsys.readouterr().err


def test_a_measured_round_has_what_comes_in_its_time(outcome: Outcome) -> None:
    served = outcome.ablation.default
    whole = served.busy_seconds
    assert tune.round_size(LOAD, 24, served, whole) == 24
    assert tune.round_size(LOAD, 24, served, whole / 100) == 8
    # At a low rate, the server is idle most of the time.
    assert tune.round_size(Load(SMALL, None, 0.5), 24, served, 30.0) == 15


def test_requests_that_all_do_not_count_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tune", "small", "--objective=ttft", "--users=16", "--requests=16"])
    with pytest.raises(SystemExit, match="2"):
        tune.main()
    assert "--requests: must be more than the 16 --users" in capsys.readouterr().err
