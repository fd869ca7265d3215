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
    ("arguments", "reason"),
    [
        (("--lengths", "fixed:1"), "lengths 'fixed:1': must be azure_chat, azure_code, or PROMPT,OUTPUT"),
        (("--lengths", "fixed:1,fixed:0"), "lengths 'fixed:0': tokens: "),
        (("--lengths", "uniform:9:3,fixed:1"), "low is 9; it must be at most high, 3"),
        (("--lengths", "fixed:1,fixed:inf"), "lengths 'fixed:inf': tokens: "),
        (("--lengths", "lognormal:-1:1:1:9,fixed:1"), "lengths 'lognormal:-1:1:1:9': median: "),
        (("--arrivals", "never"), "no arrivals: 'never'; must be poisson, gamma:CV, "),
        (("--arrivals", "trace.csv.gz"), "at_once, or a trace as .csv"),
        (("--lengths", "uniform:9:3,fixed:1"), "lengths 'uniform:9:3': Value error, low is 9"),
        (("--lengths", "normal:1:2,fixed:1"), "no lengths: 'normal:1:2'; must be one of fixed:TOKENS, uniform:"),
        (("--arrivals", "gamma:0"), "each number must be finite and over 0"),
        (("--arrivals", "staircase:60:0:4"), "each number must be finite and over 0"),
        (("--set", "max_num_seqs=0"), "max_num_seqs is 0"),
        (("--set", "max_num_seqs=8,16"), "max_num_seqs has 2 values"),
        (("--set", "max_num_seqs=few"), "max_num_seqs is 'few'"),
        (("--set", "nothing=1"), "unknown settings nothing"),
        (("--compare", "tensor_parallel_size=1,2"), "tensor_parallel_size: the simulator has no model and no machine"),
        (("--set", "kv_offloading_size=4"), "it applies allow_timeout_override, arrival_forecast_ms, "),
        (("--set", "length_predictor=hidden_state"), "length_predictor is 'hidden_state'; the simulator has no model"),
        (("--compare", 'tenant_weights={"a": 1'), "which is not valid JSON"),
        (("--compare", "max_num_seqs"), "setting 'max_num_seqs': must be NAME=VALUE"),
        (("--arrivals", "trace.csv", "--tenant", "a=1", "--max-tokens", "9"), "; --max-tokens, --tenant cannot"),
        (("--arrivals", "at_once", "--rate", "9"), "arrivals 'at_once' say when requests come; --rate cannot"),
        (("--arrivals", "staircase:60:1", "--rate", "9"), "; --rate cannot"),
        (("--arrivals", "gamma:x"), "no arrivals: 'gamma:x'"),
        (("--arrivals", "on_off:1e-300:1"), "arrivals 'on_off:1e-300:1': each number must be from 1e-09 to 1e+09"),
        (("--arrivals", "staircase:1:1e300"), "arrivals 'staircase:1:1e300': each number must be from 1e-09 to 1e+09"),
        (("--set", "kv_cache_tokens=1000000000000"), "kv_cache_tokens is 1000000000000; it must be at most 100000000"),
        (("--arrivals", "gamma:1e-200"), "arrivals 'gamma:1e-200': CV must be from 0.001 to 1000"),
        (("--arrivals", "gamma:1e200"), "arrivals 'gamma:1e200': CV must be from 0.001 to 1000"),
        (("--speed", "2"), "--speed is for traces, and --arrivals is 'poisson'"),
        (("--tenant", "a=1", "--tenant", "a=3"), "--tenant a is given 2 times"),
        (("--sweep", "--set", "max_num_seqs=4"), "leave out --set max_num_seqs=4"),
        (("--sweep", "--compare", "max_num_seqs=1,2"), "leave out --compare and --plot"),
        (("--sweep", "--plot", "sweep.png"), "leave out --compare and --plot"),
    ],
)
def test_nonsense_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str], reason: str
) -> None:
    assert command(monkeypatch, "--requests", "2", *arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert reason in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rate", "0"),
        ("--rate", "1e-300"),
        ("--requests", "0"),
        ("--requests", "1000000000000"),
        ("--seed", "100000000000000000000"),
        ("--max-tokens", "-5"),
        ("--prefixes", "1e20"),
        ("--prefixes", "100000000000000000000"),
        ("--prefix-tokens", "1000000000000"),
        ("--kv-cache-tokens", "1000000000000"),
        ("--slo-ttft", "inf"),
        ("--tenant", "a=none"),
        ("--tenant", "a=1e308"),
    ],
    ids=" ".join,
)
def test_numbers_out_of_bounds_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command(monkeypatch, *arguments)
    option, value = arguments
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: must be a" in last
    assert repr(value.rpartition("=")[2]) in last


def test_a_sweep_has_drafts_and_prices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--requests", "9", "--lengths", "fixed:9,fixed:9", "--acceptance", "1", "--price-per-hour", "3")
    assert command(monkeypatch, *given, "--sweep") == 0
    said = capsys.readouterr().out
    assert "cost per 1k tokens" in said
    assert "Recommended for TTFT within 1.0 s and ITL within 0.05 s: max_num_seqs=" in said


def test_settings_may_be_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    workload = ("--requests", "40", "--arrivals", "at_once", "--lengths", "uniform:9:99,uniform:5:50")
    tenants = ("--tenant", "a=1", "--tenant", "b=1")
    settings = ("--set", "scheduling_policy=fair", "--set", "max_num_seqs=4")
    compared = ("--compare", 'tenant_weights={"a": 1, "b": 1},{"a": 1, "b": 9}')
    assert command(monkeypatch, *workload, *tenants, *settings, *compared) == 0
    equal, unequal = capsys.readouterr().out.splitlines()[2:]
    assert equal.startswith('| tenant_weights={"a": 1, "b": 1} | ')
    assert unequal.startswith('| tenant_weights={"a": 1, "b": 9} | ')
    assert equal.split(" | ")[1:] != unequal.split(" | ")[1:]


def test_the_table_says_how_many_requests_were_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = ("--requests", "4", "--arrivals", "at_once", "--lengths", "fixed:9,fixed:5")
    assert command(monkeypatch, *workload, "--set", "max_queue_size=1") == 0
    head, _, row = (line.split(" | ") for line in capsys.readouterr().out.splitlines())
    assert row[head.index("requests")] == "4"
    assert row[head.index("answered")] == "25.0%"


def test_a_file_that_is_no_trace_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = tmp_path / "trace.json"
    for text in ("[1, 2]", "{}", "nothing"):
        given.write_text(text)
        for option in ("--cost", "--acceptance"):
            assert command(monkeypatch, "--requests", "2", option, str(given)) == 1
            assert capsys.readouterr().err.startswith(f"error: {given} is no trace of an engine: ")


def test_a_trace_without_requests_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    assert command(monkeypatch, "--arrivals", str(trace)) == 1
    assert capsys.readouterr().err == f"error: {trace} has no requests\n"


def test_a_value_is_refused_before_others_are_simulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "simulate", lambda *_, **__: pytest.fail("simulated"))
    assert command(monkeypatch, "--requests", "2", "--compare", "max_num_seqs=4,0") == 1
    assert "max_num_seqs is 0" in capsys.readouterr().err


def test_a_policy_that_is_set_is_simulated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    workload = ("--requests", "60", "--lengths", "uniform:9:99,uniform:5:50")
    one_at_a_time = (*workload, "--set", "max_num_seqs=1")
    assert command(monkeypatch, *one_at_a_time, "--compare", "scheduling_policy=fcfs,sjf") == 0
    fcfs, sjf = capsys.readouterr().out.splitlines()[2:]
    assert fcfs.split(" | ")[1:] != sjf.split(" | ")[1:]
    assert command(monkeypatch, *one_at_a_time, "--set", "scheduling_policy=sjf") == 0
    assert capsys.readouterr().out.splitlines()[2:] == [sjf]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_where_no_request_is_answered_a_table_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    workload = ("--requests", "4", "--lengths", "fixed:9,fixed:5", "--set", "batching_strategy=dynamic")
    # Each request waits 50 ms for others.
    given = (*workload, "--compare", "default_timeout_microseconds=1000,0", "--plot", str(tmp_path / "plot.png"))
    assert command(monkeypatch, *given) == 0
    head, _, none, some = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    cells = dict(zip(head, none[1:], strict=True))
    assert (cells["answered"], cells["in SLO"], cells["output tok/s"]) == ("0.0%", "0.0%", "0")
    assert cells["TTFT p50, s"] == cells["E2E mean, s"] == cells["machine s per 1k tokens"] == "-"
    assert "-" not in some
    assert command(monkeypatch, *workload, "--set", "default_timeout_microseconds=1000", "--sweep") == 0
    assert "No settings that were tried answer any request" in capsys.readouterr().out
