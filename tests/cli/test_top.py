"""`inflight top` without anything to show. tests/triton/test_top.py tests it with a server under load."""

from scripts.launch.triton_server import TritonServer
from tests.cli.program import Program


def test_model_without_such_metrics(program: Program, server: TritonServer) -> None:
    done = program.run("top", "--once", "--metrics-url", server.metrics_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the server has no metric inflight:")


def test_no_metrics(program: Program) -> None:
    done = program.run("top", "--once", "--metrics-url", "http://127.0.0.1:1/metrics")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no metrics at http://127.0.0.1:1/metrics")


def test_no_terminal(program: Program, server: TritonServer) -> None:
    done = program.run("top", "--metrics-url", server.metrics_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--once" in done.stderr
