"""Requests beyond a limit are refused, with the time after which to try again."""

import asyncio
import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from starlette.types import Message, Receive, Scope, Send

from inflight_gateway import limits
from inflight_gateway.errors import ApiError
from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess


@pytest.fixture(scope="module")
def narrow(server: TritonServer) -> Iterator[GatewayProcess]:
    limits = ["--max-concurrent-requests=2", "--max-body-bytes=1000", "--request-timeout=1"]
    with GatewayProcess(server.grpc_url, *limits) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.fixture
def client(narrow: GatewayProcess) -> Iterator[OpenAI]:
    with narrow.openai() as client:
        yield client


def test_more_requests_than_may_run_at_once(narrow: GatewayProcess, client: OpenAI) -> None:
    forever: dict[str, Any] = {"model": "llm", "prompt": "!gap 10 !forever", "max_tokens": 10_000, "stream": True}
    with client.completions.create(**forever) as one, client.completions.create(**forever) as other:
        next(one), next(other)
        with pytest.raises(openai.RateLimitError, match="2 requests are running; at most 2 may") as caught:
            client.completions.create(model="llm", prompt="one")
        assert caught.value.response.headers["retry-after"] == "1"
        assert httpx.get(f"{narrow.url}/health").status_code == 200
        assert client.models.list().data
    # The slots become free when the gateway notices that the clients have disconnected. Until then OpenAI's client
    # retries.
    assert client.with_options(max_retries=5).completions.create(model="llm", prompt="one").choices[0].text == "one "


@pytest.fixture(scope="module")
def crowded(server: TritonServer) -> Iterator[GatewayProcess]:
    limits = ["--max-concurrent-samples=20", "--max-body-bytes=1000", "--max-total-body-bytes=1500"]
    with GatewayProcess(server.grpc_url, *limits) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


def test_samples_count_as_requests_do(crowded: GatewayProcess) -> None:
    forever: dict[str, Any] = {"model": "llm", "max_tokens": 10_000, "stream": True}
    prompts = ["!gap 10 !forever"] * 9
    with crowded.openai() as client:
        with client.completions.create(prompt=prompts, **forever) as one:
            next(one)
            with client.completions.create(prompt=prompts, **forever) as other:
                next(other)
                says = "18 samples are being generated and 3 are asked for; at most 20 may be"
                with pytest.raises(openai.RateLimitError, match=says) as caught:
                    client.completions.create(model="llm", prompt=["one"] * 3)
                assert caught.value.response.headers["retry-after"] == "1"
                with pytest.raises(openai.RateLimitError, match="18 samples are being generated"):
                    client.chat.completions.create(model="llm", messages=[{"role": "user", "content": "a"}], n=3)
                assert len(client.completions.create(model="llm", prompt=["one"] * 2).choices) == 2
        patient = client.with_options(max_retries=5)
        assert len(patient.completions.create(model="llm", prompt=["one"] * 20).choices) == 20


def test_samples_that_never_fit(crowded: GatewayProcess) -> None:
    with crowded.openai() as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="llm", prompt=["one"] * 7, n=3)
    assert "the prompts times n are 21 samples; they must be at most 20" in str(caught.value)
    assert caught.value.param == "n"


def test_bodies_of_all_requests_together(crowded: GatewayProcess) -> None:
    """A body is kept until its answer ends, and so counts until then."""
    with crowded.openai() as client:
        long = "!gap 10 !forever " + "a" * 850
        with client.completions.create(model="llm", prompt=long, max_tokens=10_000, stream=True) as stream:
            next(stream)
            says = "the bodies of all requests have over 1500 bytes; no more are kept"
            with pytest.raises(openai.RateLimitError, match=says) as caught:
                client.completions.create(model="llm", prompt="a" * 700)
            assert caught.value.response.headers["retry-after"] == "1"
            assert client.completions.create(model="llm", prompt="one").choices[0].text == "one "
        assert client.with_options(max_retries=5).completions.create(model="llm", prompt="a" * 700).choices


@pytest.mark.parametrize("chunked", [False, True])
def test_body_that_is_too_large(narrow: GatewayProcess, chunked: bool) -> None:
    body = b'{"model": "llm", "prompt": "%b"}' % (b"a" * 1000)
    content = iter([body[:500], body[500:]]) if chunked else body
    response = httpx.post(f"{narrow.url}/v1/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    assert "at most 1000" in response.json()["error"]["message"]


def test_largest_body(narrow: GatewayProcess) -> None:
    shell = '{"model": "llm", "prompt": "%s"}'
    body = shell % ("a" * (1000 - len(shell) + 2))
    assert len(body) == 1000
    response = httpx.post(f"{narrow.url}/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200


def test_answer_that_takes_too_long(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="llm", prompt="!gap 10 !forever", max_tokens=10_000)
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")


def test_stream_that_takes_too_long_ends_with_an_event(client: OpenAI) -> None:
    with client.completions.create(model="llm", prompt="!gap 10 !forever", max_tokens=10_000, stream=True) as stream:
        assert next(stream).choices[0].text == "tick "
        with pytest.raises(openai.APIError) as caught:
            list(stream)
    assert caught.value.code == "deadline_exceeded"


def test_body_that_does_not_arrive(narrow: GatewayProcess) -> None:
    connection = HTTPConnection("127.0.0.1", narrow.http_port, timeout=10)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Length", "10")
    connection.endheaders(b"{")
    response = connection.getresponse()
    assert response.status == 408
    assert json.load(response)["error"]["code"] == "slow_body"
    connection.close()


def test_places_of_requests_that_failed_are_free(narrow: GatewayProcess, client: OpenAI) -> None:
    for _ in range(3):
        for body in ({}, {"model": "x", "prompt": "a"}, {"model": "llm", "prompt": "!error INTERNAL"}):
            assert httpx.post(f"{narrow.url}/v1/completions", json=body).status_code in (400, 404, 500)
        with socket.create_connection(("127.0.0.1", narrow.http_port)) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
    answer = client.with_options(max_retries=5).completions.create(model="llm", prompt="one")
    assert answer.choices[0].text == "one "


def test_a_body_that_does_not_arrive_ends_before_a_long_limit_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_BODY_SECONDS", 0.01)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        pass

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    async def scenario() -> None:
        async with asyncio.timeout(20):
            await limits.BodyLimit(reads, 100, 100, 600.0)({"type": "http", "method": "POST"}, receive, send)

    with pytest.raises(ApiError, match=r"the body did not arrive within 0\.01 s"):
        asyncio.run(scenario())
