"""Responses that come only from other servers, or from proxies in front of Triton."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest

from inflight_client import (
    AccessDenied,
    Client,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RetryPolicy,
    ServerFault,
    ServerOverloaded,
    TransportError,
)
from tests.client.blocking import Blocking

ONCE = RetryPolicy(attempts=1)
KINDS = pytest.mark.parametrize("kind", [Client, Blocking])


@pytest.fixture
def grpc_url() -> Iterator[str]:
    """A gRPC server that is overloaded and says when to try again."""

    def refuse(requests: Any, context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata([("grpc-retry-pushback-ms", "2500")])
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "try later")

    handler = grpc.stream_stream_rpc_method_handler(refuse)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelStreamInfer": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@KINDS
def test_pushback_of_grpc(grpc_url: str, kind: Any) -> None:
    with kind(grpc_url, retry=ONCE) as client, pytest.raises(ServerOverloaded, match="try later") as failure:
        client.generate("one")
    assert failure.value.retry_after == 2.5


@pytest.fixture
def other_program() -> Iterator[str]:
    """A gRPC server that is not Triton."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@KINDS
def test_another_program_that_speaks_grpc(other_program: str, kind: Any) -> None:
    """The request is not to blame: another server may take it."""
    with (
        kind(other_program, retry=ONCE) as client,
        pytest.raises(ModelNotReady, match="there is no Triton server: Method not found!"),
    ):
        client.generate("one")


@KINDS
@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_a_proxy_of_the_environment_is_not_asked(
    other_program: str, monkeypatch: pytest.MonkeyPatch, name: str, kind: Any
) -> None:
    """Docker and companies set it for the internet, and it does not know the servers of this host or network."""
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))  # It does not listen, so it takes no connection.
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        with kind(other_program, retry=ONCE) as client, pytest.raises(ModelNotReady):
            client.generate("one")


EVENTS = """\
: a comment of a proxy's

event: ping

data: {"text_output": "a\u2028b\u0085c", "usage": [1, 1]}

data:{"text_output": "d",
data: "finish_reason": "stop", "usage": [1, 2]}

"""


@pytest.fixture
def http_url() -> Iterator[str]:
    """An HTTP server that answers the prompt "events" with EVENTS. Any other prompt is the status to answer with."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            prompt = json.loads(self.rfile.read(int(self.headers["content-length"])))["text_input"]
            if prompt == "events":
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                self.wfile.write(EVENTS.encode())
                return
            self.send_response(int(prompt))
            self.send_header("retry-after", "7")
            self.end_headers()
            self.wfile.write(b"not JSON")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@KINDS
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, AccessDenied),
        (403, AccessDenied),
        (404, ModelNotReady),
        (413, InvalidRequest),
        (429, ServerOverloaded),
        (500, ServerFault),
        (502, TransportError),
        (503, ServerOverloaded),
    ],
)
def test_statuses_of_http(http_url: str, kind: Any, status: int, error: type[InflightError]) -> None:
    with kind(http_url, retry=ONCE) as client, pytest.raises(error, match="not JSON") as failure:
        client.generate(str(status))
    if isinstance(failure.value, ServerOverloaded):
        assert failure.value.retry_after == 7


@KINDS
def test_events_as_the_standard_has_them(http_url: str, kind: Any) -> None:
    """JSON can contain Unicode's line separators unescaped, and these do not end a line of the stream."""
    with kind(http_url, retry=ONCE) as client:
        assert client.generate("events").text == "a\u2028b\u0085cd"


@KINDS
def test_a_page_in_place_of_a_stream(http_url: str, kind: Any) -> None:
    with kind(http_url, retry=ONCE) as client, pytest.raises(ServerFault, match="text/event-stream"):
        client.generate("200")
