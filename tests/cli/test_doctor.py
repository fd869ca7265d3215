"""`inflight doctor` reports what works, what does not, and how to fix it."""

from dataclasses import replace

import pytest

from inflight_cli.doctor import Level, check_contract, check_version
from inflight_client import Client
from scripts.launch.triton_server import TritonServer
from tests.cli.program import Program


def findings(output: str) -> dict[str, tuple[str, str]]:
    """Return level and text by subject. If a subject occurs twice, the last finding counts."""
    parts = [line.split(maxsplit=1) for line in output.splitlines()]
    return {rest.partition(": ")[0]: (level, rest.partition(": ")[2]) for level, rest in parts}


def test_good_server(program: Program, server: TritonServer) -> None:
    done = program.run("doctor", "--metrics-url", server.metrics_url)
    found = findings(done.stdout)
    assert done.returncode == 0
    assert found.keys() == {"client", "shared memory", "server", "version", "model", "contract", "answer", "metrics"}
    assert found["version"] == ("ok", "Triton 2.51.0")
    assert {found[subject][0] for subject in ("client", "server", "model", "contract", "answer")} == {"ok"}
    # The stand-in model has no metrics, which is only a warning.
    assert found["metrics"][0] == "warning"


def test_no_server(program: Program) -> None:
    done = program.run("doctor", "--url", "127.0.0.1:1")
    found = findings(done.stdout)
    assert done.returncode == 1
    assert found["server"][0] == "problem"
    assert "127.0.0.1:1 does not answer" in found["server"][1]
    assert "--url" in found["server"][1]
    # The checks that need the server are skipped.
    assert found.keys() == {"client", "shared memory", "server"}


def test_probe(program: Program) -> None:
    done = program.run("doctor", "--probe")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("a request of 1 token took ")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("options", [["--url", "127.0.0.1:1"], ["--model", "nothing"]])
def test_probe_that_gets_no_token(program: Program, options: list[str]) -> None:
    done = program.run("doctor", "--probe", "2", *options)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("a request of 1 token failed with ")
    assert len(done.stdout.splitlines()) == 1


def test_no_metrics(program: Program) -> None:
    done = program.run("doctor", "--metrics-url", "http://127.0.0.1:1/metrics")
    level, text = findings(done.stdout)["metrics"]
    assert (done.returncode, level) == (0, "warning")
    assert "--metrics-url" in text


def test_model_that_is_not_there(program: Program, server: TritonServer) -> None:
    done = program.run("doctor", "--model", "nothing", "--metrics-url", server.metrics_url)
    found = findings(done.stdout)
    assert (done.returncode, found["model"][0]) == (1, "problem")
    assert found["server"][0] == "ok"
    assert not {"contract", "answer"} & found.keys()


def test_model_of_another_kind(program: Program, server: TritonServer) -> None:
    done = program.run("doctor", "--model", "completion", "--metrics-url", server.metrics_url)
    found = findings(done.stdout)
    assert done.returncode == 1
    assert found["contract"][0] == "problem"
    assert "input stream (BOOL)" in found["contract"][1]
    assert "answer" not in found


def test_contract_counts_types(client: Client) -> None:
    info = client.model_info()
    assert check_contract(info).level is Level.OK
    inputs = tuple(tensor for tensor in info.inputs if tensor.name != "messages")
    found = check_contract(replace(info, inputs=inputs, decoupled=False))
    assert found.level is Level.PROBLEM
    assert "lacks input messages (BYTES), the decoupled transaction policy;" in found.text


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("2.51.0", Level.OK),
        ("2.100.1", Level.OK),
        ("3.0", Level.OK),
        ("2.50.9", Level.PROBLEM),
        ("1.99.0", Level.PROBLEM),
        ("2.51dev", Level.WARNING),
        ("", Level.WARNING),
    ],
)
def test_version(version: str, level: Level) -> None:
    assert check_version(version).level is level
