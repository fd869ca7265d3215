"""Servers that run alternately under one workload."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from load_tests.compare.__main__ import main, read_levels
from load_tests.compare.contenders import Connect, Contender, read_peers, read_system
from load_tests.compare.report import notes, table
from load_tests.compare.turns import Compared, compare
from load_tests.endpoints import grpc_endpoint
from load_tests.loads import read_loads
from scripts.launch.server_process import ServerProcess
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
    lengths = [[record.prompt_tokens for record in run.records[:10]] for run in (first_a, first_b, second_a)]
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


def test_the_notes_have_what_a_server_took() -> None:
    compared = Compared([], ready_seconds=12.4, resident_bytes=3 * 2**29)
    assert notes({"one": compared}) == "one: ready after 12 s, 1.5 GiB of memory"


def test_levels_of_users() -> None:
    assert read_levels("16") == [16]
    assert read_levels("1,8,32") == [1, 8, 32]
    for text in ("", "0", "1,", "1,x", "-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
            read_levels(text)


@pytest.mark.parametrize("text", ["", ": a=b", "name: a", "name: a=b, c"])
def test_system_that_makes_no_sense(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not of the form"):
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
