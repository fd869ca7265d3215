"""`inflight top` without a model to watch. tests/triton/test_top.py tests it with a server under load."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from inflight_cli import top
from inflight_client import DeadlineExceeded, InflightError, MetricsSnapshot, ModelNotReady, TransportError
from scripts.launch.triton_server import TritonServer
from tests.cli.program import Program
from tests.gateway.test_page_history import reading


def test_model_without_such_metrics(program: Program, server: TritonServer) -> None:
    done = program.run("top", "--once", "--metrics-url", server.metrics_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the server has no metric inflight:")


def test_no_metrics(program: Program) -> None:
    done = program.run("top", "--once", "--metrics-url", "http://127.0.0.1:1/metrics")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no metrics at http://127.0.0.1:1/metrics")
    assert done.stderr.endswith("; give --metrics-url\n")


def test_no_terminal(program: Program, server: TritonServer) -> None:
    done = program.run("top", "--metrics-url", server.metrics_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--once" in done.stderr


class Restarting:
    """A client whose server is started again after the first reading, and whose user quits when it is back."""

    def __init__(self) -> None:
        self._errors: list[InflightError] = [
            TransportError("connection refused"),
            ModelNotReady("the model is loading"),
            DeadlineExceeded("nothing came"),
        ]
        whole = reading(0).metrics
        # While a model is loaded, its metrics come one after the other, and their values later.
        partial = MetricsSnapshot(tuple(sample for sample in whole.samples if "kv_cache" not in sample.name))
        empty = MetricsSnapshot(tuple(replace(sample, value=0) for sample in whole.samples))
        self._snapshots = [whole, MetricsSnapshot(()), partial, empty, reading(1).metrics]

    def unfinished_requests(self) -> list[Any]:
        if self._errors:
            raise self._errors.pop(0)
        if not self._snapshots:
            raise KeyboardInterrupt
        return []

    def metrics(self) -> MetricsSnapshot:
        return self._snapshots.pop(0)


def test_it_goes_on_while_the_server_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "REFRESH_SECONDS", 0.01)
    shown = io.StringIO()
    client: Any = Restarting()
    with pytest.raises(KeyboardInterrupt):
        top._watch(client, "llm", 64, Console(file=shown, force_terminal=True, width=200, height=40))
    for message in ("connection refused", "the model is loading", "nothing came", "no metric inflight:"):
        _, found, rest = shown.getvalue().partition(message)
        assert found
        assert "trying again" in rest
    assert "running" in rest.partition("trying again")[2]
