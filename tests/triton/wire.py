"""Requests through tritonclient's asynchronous gRPC client, many at once."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc.aio as aio
from tritonclient.utils import np_to_triton_dtype

DTYPES = {
    "text_input": np.object_,
    "messages": np.object_,
    "sampling_parameters": np.object_,
    "stop_words": np.object_,
    "stream": np.bool_,
    "exclude_input_in_output": np.bool_,
    "max_tokens": np.int32,
    "priority": np.int32,
    "deadline_ms": np.int32,
    "top_k": np.int32,
    "temperature": np.float32,
    "top_p": np.float32,
    "seed": np.uint64,
}


@dataclass
class Answer:
    """What came back: pieces of text with their arrival times in seconds, or an error."""

    pieces: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def tensors(fields: dict[str, Any], *, batched: bool = False) -> list[aio.InferInput]:
    """Input tensors for fields named as in config.pbtxt; text may be given as bytes."""
    inputs = []
    for name, value in fields.items():
        values = value if isinstance(value, list) else [value]
        if DTYPES[name] is np.object_:
            values = [v.encode() if isinstance(v, str) else v for v in values]
        array = np.array([values] if batched else values, dtype=DTYPES[name])
        inputs.append(aio.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs


async def ask(
    client: aio.InferenceServerClient,
    fields: dict[str, Any],
    *,
    cancel_after: int | None = None,
    batched: bool = False,
    **options: Any,
) -> Answer:
    """Send one request and read its responses; give up after `cancel_after` of them (0: at once).

    `batched` puts a batch dimension in front; `options` are tritonclient's, such as `timeout`.
    """
    answer = Answer()

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
        answer.finish_reason = result.as_numpy("finish_reason").item().decode()
        if cancel_after is not None and len(answer.pieces) >= cancel_after:
            responses.cancel()
            answer.finish_reason = "given up"
            break
    return answer


def ask_all(url: str, requests: Sequence[dict[str, Any]], *, timeout: float = 120) -> list[Answer]:
    """Send all requests at once; their answers in order."""
    return together(url, lambda client: [ask(client, fields) for fields in requests], timeout=timeout)


def together(
    url: str, make: Callable[[aio.InferenceServerClient], Iterable[Any]], *, timeout: float = 120
) -> list[Any]:
    """Run the coroutines that `make` gives for a client side by side, within `timeout` seconds."""

    async def run() -> list[Any]:
        async with aio.InferenceServerClient(url) as client, asyncio.timeout(timeout):
            return await asyncio.gather(*make(client))

    return asyncio.run(run())


def one(url: str, **fields: Any) -> Answer:
    """Send one request."""
    return ask_all(url, [fields])[0]
