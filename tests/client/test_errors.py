"""Each kind of failure of a request has its own exception."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from inflight_client import (
    Client,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    RetryPolicy,
    ServerFault,
    ServerOverloaded,
    TransportError,
)
from scripts.launch.triton_server import TritonServer
from tests.client.blocking import Blocking
from tests.client.conftest import ECHO
from tests.running_server import running_server

ERROR_OF_TRITON_CODE = {
    "INVALID_ARG": InvalidRequest,
    "UNSUPPORTED": InvalidRequest,
    "UNAVAILABLE": ServerOverloaded,
    "CANCELLED": RequestCancelled,
    "NOT_FOUND": ModelNotReady,
    "INTERNAL": ServerFault,
    "UNKNOWN": ServerFault,
}


@pytest.mark.parametrize(("code", "error"), ERROR_OF_TRITON_CODE.items())
def test_code_of_the_model_decides(client: Client, code: str, error: type[InflightError]) -> None:
    with pytest.raises(error, match=f"^failed with {code}$"):
        client.generate(f"!error {code}")


def test_failing_in_the_middle_keeps_what_came_before(client: Client) -> None:
    with client.stream("one two !error INTERNAL") as stream:
        assert [next(stream).text, next(stream).text] == ["one ", "two "]
        with pytest.raises(ServerFault):
            next(stream)


def test_a_failed_stream_has_the_same_error_when_it_is_read_again(client: Client) -> None:
    with client.stream("one !error UNAVAILABLE") as stream:
        assert next(stream).text == "one "
        for _ in range(2):
            with pytest.raises(ServerOverloaded, match="failed with UNAVAILABLE"):
                next(stream)


def test_input_that_the_model_does_not_take(server: TritonServer) -> None:
    # `completion` has no input named `stream`, so Triton refuses it. Such an error has no status code.
    with Client(server.grpc_url, model="completion") as client, pytest.raises(InvalidRequest, match="stream"):
        client.generate("one")


def test_model_that_is_not_there(connect: Any) -> None:
    with connect(model="nothing", retry=RetryPolicy(attempts=1)) as client:
        assert not client.is_ready()
        with pytest.raises(ModelNotReady, match="nothing"):
            client.generate("one")
        with pytest.raises((ModelNotReady, InvalidRequest), match="nothing"):
            client.model_info()


def test_model_whose_process_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "llm").symlink_to(ECHO)
    with running_server(tmp_path, ["llm"]) as server:
        (stub,) = psutil.Process(server.pid).children()
        os.kill(stub.pid, signal.SIGSTOP)
        once = RetryPolicy(attempts=1)
        for url in (server.grpc_url, f"http://{server.http_url}"):
            with Client(url, retry=once) as client, pytest.raises(ModelNotReady, match="not healthy"):
                client.generate("one")


@pytest.mark.parametrize("url", ["127.0.0.1:1", "http://127.0.0.1:1"])
@pytest.mark.parametrize("kind", [Client, Blocking])
def test_no_server(url: str, kind: Any) -> None:
    # Port 1 is reserved, and no process listens on it.
    with kind(url, retry=RetryPolicy(attempts=1)) as client:
        assert not client.is_ready()
        for ask in (lambda: client.generate("one"), client.server_info, client.model_info):
            with pytest.raises(TransportError, match=r"[Rr]efused|attempts failed"):
                ask()


@pytest.mark.parametrize("kind", [Client, Blocking])
def test_no_metrics(kind: Any) -> None:
    for url in ("http://127.0.0.1:1/metrics", "http://[::1"):
        with kind(metrics_url=url) as client, pytest.raises(TransportError, match="no metrics at"):
            client.metrics()


def test_value_that_json_cannot_hold(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="JSON"):
        client.generate("one", temperature=float("nan"))


def test_half_a_character(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="whole characters"):
        client.generate("one \ud800")


@pytest.mark.parametrize("url", ["ftp://host:1", "http://host:1/v2", "", "http://"])
def test_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        Client(url)
