"""If a client disconnects or does not read, its request ends on the server, and no other request does."""

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import AsyncIterator
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
import uvicorn
from openai import OpenAI
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from inflight_client.metrics import parse_metrics
from inflight_gateway import disconnect
from inflight_gateway.metrics import OUTCOME
from scripts.launch.triton_server import TritonServer
from tests.eventually import eventually
from tests.gateway.gateway_process import GatewayProcess

FOREVER = "!gap 10 !forever"


def cancelled(client: OpenAI) -> int:
    """The number of cancelled requests that the server has seen so far."""
    return int(client.completions.create(model="llm", prompt="!cancelled").choices[0].text)


def cancelled_before(client: OpenAI) -> int:
    """The number once all requests of earlier tests have ended: some are cancelled only after their tests."""
    assert eventually(lambda: client.completions.create(model="llm", prompt="!others").choices[0].text == "0")
    return cancelled(client)


def test_leaving_a_stream_cancels_it_and_no_other(client: OpenAI) -> None:
    before = cancelled_before(client)
    with client.completions.create(model="llm", prompt=FOREVER, max_tokens=10_000, stream=True) as kept:
        next(kept)
        with client.completions.create(model="llm", prompt=FOREVER, max_tokens=10_000, stream=True) as left:
            next(left)
        assert eventually(lambda: cancelled(client) == before + 1)
        assert [next(kept).choices[0].text for _ in range(20)] == ["tick "] * 20
        assert cancelled(client) == before + 1
    assert eventually(lambda: cancelled(client) == before + 2)


@pytest.mark.parametrize("prompt", [FOREVER, [FOREVER, FOREVER]])
def test_all_prompts_of_a_stream_are_cancelled(client: OpenAI, prompt: str | list[str]) -> None:
    before = cancelled_before(client)
    with client.completions.create(model="llm", prompt=prompt, max_tokens=10_000, stream=True) as stream:
        next(stream)
    expected = before + (1 if isinstance(prompt, str) else 2)
    assert eventually(lambda: cancelled(client) == expected)


class Leaving:
    """Clients that leave as soon as the model has their requests, without an answer."""

    def __init__(self, gateway: GatewayProcess, server: TritonServer) -> None:
        self._gateway, self._server = gateway, server

    def _arrived(self) -> float:
        """The number of requests that have reached the model so far."""
        metrics = parse_metrics(httpx.get(self._server.metrics_url).text)
        return metrics.value("nv_inference_exec_count", model="llm")

    def ask(self, path: str, count: int = 1, **fields: Any) -> None:
        """`count`: how many requests to the model it takes."""
        arrived = self._arrived()
        body = json.dumps({"model": "llm", **fields})
        with contextlib.closing(HTTPConnection("127.0.0.1", self._gateway.http_port)) as connection:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            assert eventually(lambda: self._arrived() == arrived + count)


@pytest.fixture
def leaving(gateway: GatewayProcess, server: TritonServer) -> Leaving:
    return Leaving(gateway, server)


@pytest.mark.parametrize("prompt", [FOREVER, [FOREVER, FOREVER]])
def test_leaving_before_a_whole_answer_cancels_it(client: OpenAI, leaving: Leaving, prompt: str | list[str]) -> None:
    before, count = cancelled_before(client), 1 if isinstance(prompt, str) else 2
    leaving.ask("/v1/completions", count, prompt=prompt, max_tokens=10_000)
    assert eventually(lambda: cancelled(client) == before + count)


def test_leaving_a_response_with_logprobs_cancels_it(client: OpenAI, leaving: Leaving) -> None:
    """Which the gateway reads as a stream, also if the client wants it whole."""
    asked: Any = {"input": FOREVER, "include": ["message.output_text.logprobs"]}
    before = cancelled_before(client)
    leaving.ask("/v1/responses", **asked)
    assert eventually(lambda: cancelled(client) == before + 1)
    with client.responses.create(model="llm", **asked, stream=True) as stream:
        next(iter(stream))
    assert eventually(lambda: cancelled(client) == before + 2)


def test_leaving_before_the_first_token_cancels(client: OpenAI, leaving: Leaving) -> None:
    before = cancelled_before(client)
    messages = [{"role": "user", "content": "!gap 60000 one"}]
    leaving.ask("/v1/chat/completions", messages=messages, stream=True)
    assert eventually(lambda: cancelled(client) == before + 1)


def test_leaving_in_the_middle_of_a_body(gateway: GatewayProcess) -> None:
    def in_flight() -> float:
        metrics = parse_metrics(httpx.get(f"{gateway.url}/metrics").text)
        return metrics.value("inflight_gateway_requests_in_flight", endpoint="/v1/chat/completions")

    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.http_port)) as connection:
        connection.sendall(head + b'{"model": "llm"')
        assert eventually(lambda: in_flight() == 1)
    assert eventually(lambda: in_flight() == 0)


def test_finished_answers_are_not_cancelled(client: OpenAI) -> None:
    before = cancelled_before(client)
    for stream in (False, True):
        answer = client.completions.create(model="llm", prompt="one two", stream=stream)
        if stream:
            list(answer)  # type: ignore[arg-type]
    assert cancelled(client) == before


class EndlessAnswer:
    """An application whose answer is larger than what the buffers between it and its client can hold."""

    def __init__(self) -> None:
        self.asked: Scope | None = None
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked = scope
        try:
            await Request(scope, receive).body()
            await StreamingResponse(self._pieces())(scope, receive, send)
        finally:
            self.ended.set()

    async def _pieces(self) -> AsyncIterator[bytes]:
        for _ in itertools.count():
            yield bytes(2**20)


def test_a_client_that_does_not_read_its_answer_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "_READING_SECONDS", 0.0)

    async def scenario() -> Scope | None:
        app = EndlessAnswer()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            limited = disconnect.CancelOnDisconnect(app, request_timeout=0.5)
            server = uvicorn.Server(uvicorn.Config(limited, lifespan="off", log_level="critical"))
            serving = asyncio.create_task(server.serve([listener]))
            with socket.create_connection(listener.getsockname()) as silent:
                silent.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
                await asyncio.wait_for(app.ended.wait(), 60)
            server.should_exit = True
            await serving
        return app.asked

    asked = asyncio.run(scenario())
    assert asked is not None
    assert asked[OUTCOME] == 499
