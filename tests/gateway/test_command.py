"""The command line: the arguments that it refuses, and how the process ends."""

import os
import signal
import sys
import threading
from pathlib import Path

import httpx
import pytest

from inflight_gateway.__main__ import main
from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_beyond_loopback_only_with_keys(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--host", host]) == 1
    assert f"error: --host is {host}; without --api-keys" in capsys.readouterr().err


def test_key_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--api-keys", str(tmp_path / "keys.toml")]) == 1
    assert "keys.toml" in capsys.readouterr().err


def test_server_that_is_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--server", "ftp://a:1"]) == 1
    assert "error: the URL 'ftp://a:1'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "0"], "--port: it is 0; it must be at least 1 and at most 65535"),
        (["--port", "a"], "--port: invalid number value: 'a'"),
        (["--max-concurrent-requests", "0"], "--max-concurrent-requests: it is 0; it must be at least 1"),
        (["--max-concurrent-samples", "0"], "--max-concurrent-samples: it is 0; it must be at least 1"),
        (["--max-body-bytes", "-1"], "--max-body-bytes: it is -1"),
        (["--request-timeout", "nan"], "--request-timeout: it is nan"),
    ],
)
def test_number_out_of_its_bounds(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_bodies_that_may_be_larger_than_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--max-body-bytes", "11", "--max-total-body-bytes", "10"]) == 1
    assert "--max-total-body-bytes is 10; it must be at least --max-body-bytes, 11" in capsys.readouterr().err


def test_spans_that_cannot_be_sent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--otlp-traces-endpoint", "collector:4318"]) == 1
    assert "--otlp-traces-endpoint is collector:4318; it must begin with http:// or https://" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert main(["--otlp-traces-endpoint", "http://127.0.0.1:4318"]) == 1
    assert "is not installed; install inflight-client[gateway,tracing]" in capsys.readouterr().err


class _Closing(GatewayProcess):
    """A gateway that a shell starts with closed standard streams."""

    def _launch(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._launch()
        return ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], environment


def test_standard_streams_that_the_caller_has_closed(server: TritonServer) -> None:
    with _Closing(server.grpc_url) as gateway:
        gateway.wait_for(["/health"], 30)


def test_port_that_is_taken(server: TritonServer, gateway: GatewayProcess) -> None:
    with GatewayProcess(server.grpc_url, "--port", str(gateway.http_port)) as other:
        assert other.wait().startswith("exited with code ")
        assert "address already in use" in other.log_tail()


def test_sigterm_lets_streams_finish_and_takes_no_more(server: TritonServer) -> None:
    words = [f"{number} " for number in range(15)]
    with GatewayProcess(server.grpc_url) as gateway, gateway.openai() as client:
        gateway.wait_for(["/health"], 30)
        prompt = f"!gap 100 {''.join(words)}"
        with client.completions.create(model="llm", prompt=prompt, max_tokens=100, stream=True) as stream:
            texts = [next(stream).choices[0].text]
            os.kill(gateway.pid, signal.SIGTERM)
            texts += [next(stream).choices[0].text for _ in range(5)]
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{gateway.url}/health")
            texts += [chunk.choices[0].text for chunk in stream]
        assert texts == [*words, ""]
        ended = threading.Event()
        threading.Thread(target=lambda: (gateway.wait(), ended.set())).start()
        assert ended.wait(10)
