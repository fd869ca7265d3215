"""The command line parses its options and reports errors in them."""

import sys
from pathlib import Path

import pytest

from load_tests.arrivals import AllAtOnce, Arrivals, Gamma, OnOff, Staircase
from load_tests.lengths import AZURE_CODE, Exponential, LogNormal, Uniform
from load_tests.simulate import __main__ as simulate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("poisson", Gamma(4.0)),
        ("gamma:2", Gamma(4.0, 2.0)),
        ("on_off:10:5", OnOff(4.0, 10.0, 5.0)),
        ("staircase:60:1:2:4", Staircase((1.0, 2.0, 4.0), 60.0)),
        ("at_once", AllAtOnce()),
    ],
)
def test_arrivals(text: str, expected: Arrivals) -> None:
    assert simulate.read_arrivals(text, 4.0) == expected


def test_lengths() -> None:
    assert simulate.read_lengths("azure_code") == AZURE_CODE
    assert simulate.read_lengths("fixed:512,exponential:128:1536") == (Uniform(512, 512), Exponential(128.0, 1536))
    assert simulate.read_lengths("uniform:1:9,lognormal:5:1:1:99") == (Uniform(1, 9), LogNormal(5.0, 1.0, 1, 99))


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simulate", *arguments])
    return simulate.main()


def test_settings_are_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = tmp_path / "plot.png"
    comparison = ("--compare", "scheduling_policy=fcfs,sjf", "--set", "max_num_seqs=4", "--plot", str(plot))
    workload = ("--requests", "30", "--lengths", "uniform:9:99,fixed:5", "--tenant", "a=1", "--tenant", "b=2")
    assert command(monkeypatch, *workload, *comparison) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| scheduling_policy=fcfs", "| scheduling_policy=sjf"]
    assert plot.exists()


@pytest.mark.parametrize(
    "arguments", [("--lengths", "fixed:1"), ("--arrivals", "never"), ("--set", "max_num_seqs=0")], ids=" ".join
)
def test_nonsense_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]
) -> None:
    assert command(monkeypatch, "--requests", "2", *arguments) == 1
    assert capsys.readouterr().err.startswith("error: ")
