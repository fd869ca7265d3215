"""Sends requests with tritonclient's asynchronous gRPC client, many at once."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tritonclient.grpc.aio as aio

from load_tests.tensors import tensors

Fields = dict[str, Any]
"""The fields of a request: values by the name of their input."""

SERVER_TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")


@dataclass
class Answer:
    """An answer: pieces of text with their arrival times in seconds, or an error."""

    pieces: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    num_output_tokens: int = 0
    """Only set if the request asks for it."""
    server_times: dict[str, int] = field(default_factory=dict)
    """The server's own times in nanoseconds, by the name of their output. Only set if `return_perf_metrics` asks.

    Unlike `times`, they tell in which order the server worked on two requests: a client that gets little of the
    processor reads what has arrived on two streams in any order.
    """
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


async def ask(
    client: aio.InferenceServerClient,
    fields: dict[str, Any],
    *,
    cancel_after: int | None = None,
    batched: bool = False,
    into: Answer | None = None,
    **options: Any,
) -> Answer:
    """Send one request and read its responses. Cancel it after `cancel_after` responses (0: at once).

    `batched` adds a batch dimension in front. `into` is filled while the responses arrive. `options` are options of
    tritonclient, such as `timeout`.
    """
    answer = Answer() if into is None else into
    fields = {"return_finish_reason": True, **fields}

    async def one() -> Any:
        yield {"model_name": "llm", "inputs": tensors(fields, batched=batched), **options}

    responses = client.stream_infer(one())
    if cancel_after == 0:
        responses.cancel()
        answer.finish_reason = "given up"
        return answer
    async for result, error in responses:
        if error is not None:
            answer.error = error.message()
            break
        answer.times.append(time.monotonic())
        answer.pieces.append(result.as_numpy("text_output").item().decode())
        if (reason := result.as_numpy("finish_reason")) is not None:
            answer.finish_reason = reason.item().decode()
        if (tokens := result.as_numpy("num_output_tokens")) is not None:
            answer.num_output_tokens += int(tokens.item())
        if result.as_numpy(SERVER_TIMES[0]) is not None:
            answer.server_times = {name: int(result.as_numpy(name).item()) for name in SERVER_TIMES}
        if cancel_after is not None and len(answer.pieces) >= cancel_after:
            responses.cancel()
            answer.finish_reason = "given up"
            break
    return answer


def ask_all(url: str, requests: Sequence[dict[str, Any]], *, timeout: float = 120) -> list[Answer]:
    """Send all requests at once, and return their answers in order."""
    return together(url, lambda client: [ask(client, fields) for fields in requests], timeout=timeout)


def together(
    url: str, make: Callable[[aio.InferenceServerClient], Iterable[Any]], *, timeout: float = 120
) -> list[Any]:
    """Run the coroutines that `make` returns for a client concurrently, within `timeout` seconds."""

    async def run() -> list[Any]:
        async with aio.InferenceServerClient(url) as client, asyncio.timeout(timeout):
            return await asyncio.gather(*make(client))

    return asyncio.run(run())


def one(url: str, **fields: Any) -> Answer:
    """Send one request and return its answer."""
    return ask_all(url, [fields])[0]
