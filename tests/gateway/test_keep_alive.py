"""Where no event comes for a while, comments keep the connection alive."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import openai._streaming
import pytest
from anthropic._streaming import SSEDecoder as AnthropicDecoder
from starlette.types import Message, Receive, Scope, Send

from inflight_client import InvalidRequest, ModelNotReady
from inflight_gateway import sse
from inflight_gateway.errors import ApiError, answer_inflight_error
from inflight_gateway.metrics import OUTCOME, Metrics
from inflight_gateway.streaming import begin

COMMENT = b": the answer is on its way\n\n"
LONG, SHORT = 0.3, 0.0
"""Seconds, longer and shorter than the interval."""


@pytest.fixture(autouse=True)
def interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.1)


class Source:
    """Yields bytes, waits for numbers of seconds, and raises exceptions."""

    def __init__(self, *script: bytes | float | Exception) -> None:
        self._script = script
        self.closed = False
        self.metrics = Metrics()

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for item in self._script:
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, bytes):
                    yield item
                else:
                    await asyncio.sleep(item)
        finally:
            self.closed = True

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application that streams the events."""
        self.scope = scope
        try:
            response: Any = await begin(self.events(), self.metrics)
        except InvalidRequest as error:
            response = await answer_inflight_error(None, error)  # type: ignore[arg-type]
        await response(scope, receive, send)

    def ask(self) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self.answer)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=20) as client:
                return await client.get("/")

        response = asyncio.run(asked())
        assert self.closed
        return response


A, B = b"data: a\n\n", b"data: b\n\n"


@pytest.mark.parametrize(
    ("script", "parts"),
    [
        ([A, B], [A, B]),
        ([LONG, A, B], [COMMENT, A, B]),
        ([A, LONG, B], [A, COMMENT, B]),
        ([LONG, A, LONG, B, LONG], [COMMENT, A, COMMENT, B, COMMENT]),
    ],
)
def test_comments_are_where_no_event_came(script: Sequence[Any], parts: Sequence[bytes]) -> None:
    source = Source(*script)
    body = source.ask().content
    while COMMENT + COMMENT in body:
        body = body.replace(COMMENT + COMMENT, COMMENT)
    assert body == b"".join(parts)
    assert source.metrics.registry.get_sample_value("inflight_gateway_time_to_first_token_seconds_count") == 1


def test_events_that_come_often_are_not_interrupted() -> None:
    assert COMMENT not in Source(*[0.03, A] * 20).ask().content


def test_a_refusal_has_its_own_status() -> None:
    response = Source(SHORT, InvalidRequest("max_tokens is 0")).ask()
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("script", [[LONG], [LONG, A, LONG], [A]])
def test_a_failure_after_the_beginning_is_an_event(script: Sequence[Any]) -> None:
    source = Source(*script, ModelNotReady("it drains"))
    response = source.ask()
    assert response.status_code == 200
    assert b"the model is not ready: it drains" in response.content
    assert source.scope[OUTCOME] == 503


def test_a_refusal_after_the_beginning_is_an_event() -> None:
    source = Source(LONG, ApiError(400, "invalid_value", "prompt is too long", param="messages"))
    response = source.ask()
    assert (response.status_code, source.scope[OUTCOME]) == (200, 400)
    assert b'"message":"prompt is too long"' in response.content


@pytest.mark.parametrize("seconds", [0.02, 0.25])
@pytest.mark.parametrize("script", [[20.0, A], [A, 20.0]])
def test_a_cancelled_answer_closes_its_source(script: Sequence[Any], seconds: float) -> None:
    source = Source(*script)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def cancelled() -> set[str]:
        before = asyncio.all_tasks()
        answering = asyncio.create_task(source.answer({"type": "http"}, receive, send))
        await asyncio.sleep(seconds)
        answering.cancel()
        await asyncio.wait({answering})
        assert source.closed
        return {str(task.get_coro()) for task in asyncio.all_tasks() - before}

    assert asyncio.run(cancelled()) == set()
    if seconds > 0.1:
        assert COMMENT in [message.get("body") for message in sent]


@pytest.mark.parametrize("decoder", [openai._streaming.SSEDecoder, AnthropicDecoder])
def test_clients_ignore_comments(decoder: Any) -> None:
    found = decoder().iter_bytes([COMMENT, A, COMMENT, COMMENT, B, COMMENT])
    assert [event.data for event in found] == ["a", "b"]
