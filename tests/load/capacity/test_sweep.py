"""Short sweeps of real servers, from the command line to the report."""

import csv
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from load_tests.capacity.__main__ import main
from load_tests.capacity.timeline import read_timeline
from load_tests.records import read_records
from scripts.launch.default_model import default_model
from scripts.launch.served_model import triton_server
from scripts.launch.triton_server import TritonServer
from tests.load.servers import metronome_server

FIRST_SECONDS, GAP_SECONDS = 0.1, 0.01
OUTPUT_TOKENS = 8
WORKLOAD = f"""
about: short answers
seed: 1
slo: {{ttft: 30.0, itl: 30.0}}
streams:
  short:
    rate: 1.0
    prompts: {{distribution: uniform, low: 4, high: 16}}
    outputs: {{distribution: fixed, tokens: {OUTPUT_TOKENS}}}
"""


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workload") / "short.yaml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture(scope="module")
def metronome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("metronome")
    with metronome_server(folder, first_ms=round(1000 * FIRST_SECONDS), gap_ms=round(1000 * GAP_SECONDS)) as server:
        yield server


def sweep(server: TritonServer, workload: Path, results: Path, *arguments: str) -> Path:
    """Run a sweep from the command line and return the folder of its report."""
    command = [sys.executable, "-m", "load_tests.capacity", f"--url={server.grpc_url}", f"--workload={workload}"]
    command += [f"--metrics-url={server.metrics_url}", f"--results={results}", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    (folder,) = results.iterdir()
    assert f"Report: {folder / 'report.html'}" in ended.stdout
    return folder


def rows_of(folder: Path) -> list[dict[str, float]]:
    with (folder / "levels.csv").open(newline="") as file:
        return [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]


def test_no_answer_is_faster_than_a_server_whose_pace_is_known(
    metronome: TritonServer, workload: Path, tmp_path: Path
) -> None:
    folder = sweep(metronome, workload, tmp_path, "--by=rate", "--start=16", "--minutes=0.1", "--repeats=1")
    rows = rows_of(folder)
    assert len(rows) >= 2
    for row in rows:
        # The metronome sends no token early. It may send tokens late if other processes use the processors.
        assert row["TTFT p50 (s)"] >= FIRST_SECONDS
        assert row["E2E p50 (s)"] >= FIRST_SECONDS + GAP_SECONDS * (OUTPUT_TOKENS - 1)
        assert row["failed (%)"] == 0
    page = (folder / "report.html").read_text()
    assert "none of this project's metrics" in page
    assert "No load broke the objective" in page


def test_ctrl_c_leaves_a_report_of_the_levels_that_are_finished(
    metronome: TritonServer, workload: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "load_tests.capacity", f"--url={metronome.grpc_url}", f"--workload={workload}"]
    command += [f"--metrics-url={metronome.metrics_url}", f"--results={tmp_path}", "--minutes=0.5", "--repeats=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while "4 users" not in said and (read := process.stderr.read(1)):
            said += read
        process.send_signal(signal.SIGINT)
        printed, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: the sweep is not complete: it was stopped" in error
    assert "Report: " in printed
    (folder,) = tmp_path.iterdir()
    assert [row["users"] for row in rows_of(folder)] == [1, 2]
    # Other sweeps of a running server have other prompts.
    assert re.search(r"seed: \d+|<dt>seed</dt>", (folder / "report.html").read_text())


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TritonServer, Path]]:
    """The default model, and the file of its trace."""
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    with triton_server(default_model(), trace_file=str(trace)) as server:
        yield server, trace


@pytest.mark.slow
def test_the_default_model_is_swept_and_its_metrics_and_trace_are_read(
    traced: tuple[TritonServer, Path], workload: Path, tmp_path: Path
) -> None:
    server, trace = traced
    begun = time.time()
    # With these times a level lasts longer than two of the server's metrics updates.
    folder = sweep(server, workload, tmp_path, "--minutes=0.6", "--repeats=1")
    ended = time.time()
    rows = rows_of(folder)
    for row in rows:
        assert row["output (tokens/s)"] > 0
    seen = [row for row in rows if row["requests in a step"] == row["requests in a step"]]
    assert seen
    for row in seen:
        assert row["requests in a step"] > 0
        assert 0 < row["batch utilisation (%)"] <= 100
        assert row["batch efficiency (%)"] == 100
        assert row["running, max (requests)"] <= row["users"]
    sent = [record for path in (folder / "raw").glob("*.requests.jsonl") for record in read_records(path)]
    assert all(record.done and record.output_tokens == OUTPUT_TOKENS for record in sent)
    page = (folder / "report.html").read_text()
    assert re.search(r"Set max_num_seqs to \d+ \(now 64\) and max_num_batched_tokens to \d+ \(now 512\)", page)
    timeline = read_timeline(trace, 1, begun, ended)
    # Requests of the warm-up are in the trace but not in the report.
    assert len(timeline.requests) > len(sent)
    phases = {span.phase for request in timeline.requests for span in request}
    assert phases == {"waiting", "prefill", "decode"}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--minutes=0", "argument --minutes: must be a number of at least 0.1, not '0'"),
        ("--repeats=1.5", "argument --repeats: must be a whole number of at least 1, not '1.5'"),
        ("--start=1.5", "argument --start: must be a whole number of users, not 1.5"),
        ("--url=http://127.0.0.1:8000", "argument --url: must be a host and the port of gRPC, such as 127.0.0.1:8001"),
        ("--url=", "argument --url: must be a host and the port of gRPC, such as 127.0.0.1:8001, not ''"),
    ],
)
def test_bad_arguments_are_named(
    argument: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["capacity", argument])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload=none.yaml"], "none.yaml"),
        (["--url=127.0.0.1:9", "--metrics-url=http://127.0.0.1:9/metrics"], "error: "),
    ],
)
def test_what_cannot_be_read_or_reached_is_named(arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "load_tests.capacity", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
