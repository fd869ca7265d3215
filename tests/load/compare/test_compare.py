"""Servers that run alternately under one workload."""

import argparse
import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.compare.__main__ import chosen, main
from load_tests.compare.contenders import Connect, Contender, read_peers, read_system
from load_tests.compare.report import HEADER, notes, table
from load_tests.compare.turns import Compared, compare
from load_tests.endpoints import grpc_endpoint
from load_tests.loads import read_loads
from load_tests.records import Run, write_records
from scripts.launch.errors import LauncherError
from scripts.launch.server_process import ServerProcess
from scripts.peers.transformers_server import STATIC
from tests.load.servers import metronome_server
from tests.load.synthetic_runs import run_of


def metronome(name: str, folder: Path) -> Contender:
    @contextlib.contextmanager
    def start(users: int) -> Iterator[tuple[ServerProcess, Connect]]:
        with metronome_server(folder / name, first_ms=20, gap_ms=2) as server:
            yield server, lambda: grpc_endpoint(server.grpc_url)

    return Contender(name, start)


def test_two_servers_take_turns(tmp_path: Path) -> None:
    """Each server is paused while the other one runs, and then continues normally."""
    loads = read_loads("small,short")
    all_results = compare([metronome("a", tmp_path), metronome("b", tmp_path)], loads, users=4, rounds=2, seconds=1)
    assert list(all_results) == ["small", "short"]
    for results in all_results.values():
        check_turns(results)
    prompts = [record.prompt_tokens for record in all_results["short"]["a"].runs[0].records]
    assert max(prompts) <= 32


def check_turns(results: dict[str, Compared]) -> None:
    assert list(results) == ["a", "b"]
    for compared in results.values():
        assert len(compared.runs) == 2
        assert all(run.done and not run.errors() for run in compared.runs)
        assert compared.ready_seconds > 0
        assert compared.resident_bytes > 2**20
    (first_a, second_a), (first_b, _) = (compared.runs for compared in results.values())
    # How many requests a round has depends on the machine; which they are does not.
    count = min(len(run.records) for run in (first_a, first_b, second_a))
    lengths = [[record.prompt_tokens for record in run.records[:count]] for run in (first_a, first_b, second_a)]
    assert lengths[0] == lengths[1] != lengths[2]


def test_ratios_are_of_rounds_and_to_the_first() -> None:
    results = {"one": Compared([run_of(100), run_of(200)]), "two": Compared([run_of(50), run_of(300)])}
    results["three"] = Compared([run_of(100, "ServerOverloaded"), run_of(100, "ServerOverloaded")])
    levels = {8: {"small": results}, 16: {"small": {"one": Compared([run_of(10)])}}}
    _, _, one, two, three, other = table(read_loads("small"), levels).splitlines()
    assert one.startswith("| small | 8 | one | 150 | 100, 200 | 1.00 (1.00 to 1.00) | 0.50, 0.50 |")
    assert two.startswith("| small | 8 | two | 175 | 50, 300 | 1.00 (0.50 to 1.50) |")
    assert three.startswith("| small | 8 | three | 0 | 0, 0 | 0.00 (0.00 to 0.00) | - | - | 0% |")
    assert three.endswith("| ServerOverloaded: 2 |")
    assert other.startswith("| small | 16 | one | 10 | 10 | 1.00 ")


def test_what_is_infinite_or_undefined_is_a_dash() -> None:
    refused, answered = run_of(100, "ServerOverloaded"), run_of(100)
    some = Run([*answered.records] * 9 + [*refused.records], 0.1)
    results = {"one": Compared([answered, refused]), "two": Compared([answered, answered]), "three": Compared([some])}
    results["three"].runs.append(some)
    _, _, one, two, three = table(read_loads("small"), {8: {"small": results}}).splitlines()
    assert one.startswith("| small | 8 | one | 50 | 100, 0 | - | 0.50, - | ")
    assert two.startswith("| small | 8 | two | 100 | 100, 100 | - | 0.50, 0.50 | ")
    assert three.startswith("| small | 8 | three | 900 | 900, 900 | - | 0.50, - | ")


def test_columns_have_the_units_of_their_titles() -> None:
    """Of ten requests of 100 tokens with gaps of 5 ms, one ends after 2 s and misses the objective, and one fails."""
    (answered,) = run_of(100).records
    late, failed = replace(answered, first_token=1.5, last_token=2.0), replace(answered, error="ServerOverloaded")
    run = Run([*[answered] * 8, late, failed], 0.1)
    (row,) = table(read_loads("small"), {8: {"small": {"one": Compared([run])}}}).splitlines()[2:]
    cells = dict(zip(HEADER, row.strip("| ").split(" | "), strict=True))
    assert cells["ITL p50, p99 (ms)"] == "5, 5"
    assert cells["In SLO"] == "80%"
    assert cells["Goodput (req/s)"] == "4.00"
    assert cells["Requests"] == "10"
    assert cells["Errors"] == "ServerOverloaded: 1"


@pytest.mark.parametrize(
    ("names", "chosen_peers"), [(["a", "a"], None), ([f"transformers, {STATIC}"], ["transformers"])]
)
def test_two_servers_of_one_name_are_refused(names: list[str], chosen_peers: list[str] | None, tmp_path: Path) -> None:
    systems = [(name, {"max_num_seqs": str(number)}) for number, name in enumerate(names, 1)]
    options = argparse.Namespace(system=systems, peers=chosen_peers, drafting=False)
    with pytest.raises(LauncherError, match=f"2 servers have the name {names[0]!r}"):
        chosen(options, tmp_path)


def test_the_notes_have_what_a_server_took() -> None:
    compared = Compared([], ready_seconds=12.4, resident_bytes=3 * 2**29)
    assert notes({"one": compared}) == "one: ready after 12 s, 1.5 GiB of memory"


@pytest.mark.parametrize("arguments", [("--rounds", "0"), ("--seconds", "-1"), ("--seconds", "nan")], ids=" ".join)
def test_a_comparison_that_measures_nothing_is_refused(
    arguments: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compare", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert f"argument {arguments[0]}: " in capsys.readouterr().err


def test_records_of_two_runs_are_not_mixed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_records(run_of(100).records, tmp_path / "one-small-16-2.jsonl")
    monkeypatch.setattr("sys.argv", ["compare", "--rounds", "1", "--records", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert f"argument --records: {str(tmp_path)!r} has the records of an earlier run; it must be another folder" in said


@pytest.mark.parametrize("text", ["", ": a=b", "name: a", "name: a=b, c", "name: =b"])
def test_system_that_makes_no_sense(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not of the form"):
        read_system(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('name: tenant_weights={"a": 1', "tenant_weights is '{\"a\": 1', which is not valid JSON: "),
        ("name: max_num_seqs=1, max_num_seqs=2", "gives max_num_seqs twice"),
    ],
)
def test_settings_of_a_system_that_make_no_sense(text: str, reason: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(reason)):
        read_system(text)


def test_peers_are_named_or_refused() -> None:
    assert read_peers("vLLM,transformers") == ["vLLM", "transformers"]
    with pytest.raises(argparse.ArgumentTypeError, match="'vllm' is none of transformers, vLLM"):
        read_peers("vllm")


def test_drafting_needs_peers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["compare", "--drafting"])
    with pytest.raises(SystemExit):
        main()
    assert "--drafting is given without --peers" in capsys.readouterr().err


def test_systems_have_a_name_and_settings() -> None:
    settings = {"scheduling_policy": "fair", "max_num_seqs": "8"}
    assert read_system("fair: scheduling_policy=fair, max_num_seqs=8") == ("fair", settings)
    assert read_system("default") == ("default", {})
    drafting = '{"method": "ngram", "num_speculative_tokens": 4}'
    assert read_system(f"drafting: speculative_config={drafting}, block_size=8") == (
        "drafting",
        {"speculative_config": drafting, "block_size": "8"},
    )
