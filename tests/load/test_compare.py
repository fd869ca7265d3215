"""Servers that take turns under one workload."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from load_tests.compare import Compared, Connect, System, compare, read_system, table
from load_tests.endpoints import grpc_endpoint
from load_tests.records import Record, Run
from load_tests.result import Slo
from load_tests.workload_file import WORKLOADS, read_workload
from scripts.launch.server_process import ServerProcess
from tests.load.servers import metronome_server


def metronome(name: str, folder: Path) -> System:
    @contextlib.contextmanager
    def start() -> Iterator[tuple[ServerProcess, Connect]]:
        with metronome_server(folder / name, first_ms=20, gap_ms=2) as server:
            yield server, lambda: grpc_endpoint(server.grpc_url)

    return System(name, start)


def test_two_servers_take_turns(tmp_path: Path) -> None:
    """Each is stopped while the other runs, and goes on as if nothing had been."""
    workload = read_workload(WORKLOADS / "small.yaml")
    results = compare([metronome("a", tmp_path), metronome("b", tmp_path)], workload, users=4, rounds=2, seconds=1)
    assert list(results) == ["a", "b"]
    for compared in results.values():
        assert len(compared.runs) == 2
        assert all(run.done and not run.errors() for run in compared.runs)
    (first_a, second_a), (first_b, _) = (compared.runs for compared in results.values())
    lengths = [[record.prompt_tokens for record in run.records[:10]] for run in (first_a, first_b, second_a)]
    assert lengths[0] == lengths[1] != lengths[2]


def run_of(tokens: int, error: str | None = None) -> Run:
    record = Record(
        index=0,
        kind="chat",
        tenant="",
        priority=0,
        prompt_tokens=10,
        max_tokens=tokens,
        target_ttft=None,
        scheduled=0.0,
        sent=0.0,
        first_token=0.5,
        last_token=1.0,
        output_tokens=tokens,
        gaps=(0.5 / tokens,) * tokens,
        error=error,
    )
    return Run([record], 0.1)


def test_ratios_are_of_rounds_and_to_the_first() -> None:
    results = {"one": Compared([run_of(100), run_of(200)]), "two": Compared([run_of(50), run_of(300)])}
    results["three"] = Compared([run_of(100, "ServerOverloaded"), run_of(100, "ServerOverloaded")])
    workload = read_workload(WORKLOADS / "small.yaml")
    workload.slo = Slo(1.0, 1.0)
    _, _, one, two, three = table(results, workload).splitlines()
    assert one.startswith("| one | 150 | 100, 200 | 1.00 (1.00 to 1.00) | 0.50, 0.50 |")
    assert two.startswith("| two | 175 | 50, 300 | 1.00 (0.50 to 1.50) |")
    assert three.startswith("| three | 0 | 0, 0 | 0.00 (0.00 to 0.00) | - | - | 0% |")
    assert three.endswith("| ServerOverloaded: 2 |")


@pytest.mark.parametrize("text", ["", ": a=b", "name: a", "name: a=b, c"])
def test_system_that_makes_no_sense(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not of the form"):
        read_system(text)


def test_systems_are_named() -> None:
    assert read_system("fair: scheduling_policy=fair, max_num_seqs=8").name == "fair"
    assert read_system("default").name == "default"
