"""Cancelled requests leave the engine at once, running or waiting, and their blocks come back."""

import asyncio
import re
import time

from scripts.triton_server import TritonServer
from tests.triton.wire import Answer, ask, one, together

LONG = {"text_input": "A very long story:", "stream": True, "max_tokens": 1500, "temperature": 0.0}


def wait_until_idle(server: TritonServer, seconds: float) -> str:
    """The engine's log line that says that nothing is left; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lines = [line for line in server.log_tail().splitlines() if "tokens/s out" in line]
        if lines and re.search(r"running 0, waiting 0, blocks 0 of", lines[-1]):
            return lines[-1]
        time.sleep(0.2)
    raise AssertionError(f"still busy after {seconds} s: {lines[-1:]}")


def test_running_requests_end_when_cancelled(server: TritonServer) -> None:
    """Four requests of 1,500 tokens are given up early; they don't go on computing."""
    answers = together(server.grpc_url, lambda client: [ask(client, LONG, cancel_after=3) for _ in range(4)])
    assert [answer.finish_reason for answer in answers] == ["given up"] * 4
    wait_until_idle(server, 25)


def test_waiting_requests_end_when_cancelled(server: TritonServer) -> None:
    """The cache has room for four such requests; the others are cancelled while they wait."""

    def make(client):  # type: ignore[no-untyped-def]
        async def given_up_while_waiting() -> Answer:
            task = asyncio.create_task(ask(client, LONG))
            await ask(client, {"text_input": "One two", "max_tokens": 1})
            task.cancel()
            return Answer(finish_reason="given up")

        return [given_up_while_waiting() for _ in range(80)]

    together(server.grpc_url, make)
    wait_until_idle(server, 25)


def test_others_go_on(server: TritonServer) -> None:
    alone = one(server.grpc_url, text_input="Blue is", stream=True, max_tokens=30, temperature=0.0)

    def make(client):  # type: ignore[no-untyped-def]
        cancelled = [ask(client, LONG, cancel_after=n) for n in range(8)]
        return [ask(client, {"text_input": "Blue is", "stream": True, "max_tokens": 30}), *cancelled]

    survivor, *_ = together(server.grpc_url, make)
    assert survivor.text == alone.text
