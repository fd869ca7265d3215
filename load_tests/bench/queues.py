"""`make bench-queue`: compare the engine's own queue with Triton's when many requests arrive at once.

A server is started for each queue: config.pbtxt uses the engine's, and configs/triton_queue.pbtxt uses Triton's.
Clients stream small requests over gRPC to an idle server, all sent at once: first as many as can run at once, then far
more than can run and wait. Times are from sending to the first token, for the requests that got one; the others were
refused. Each load is repeated, and the table shows the median round and the worst.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import tritonclient.grpc.aio as aio
from tqdm import tqdm
from tritonclient.utils import np_to_triton_dtype

from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.model_repository import render_repository
from scripts.launch.signals import end_like_ctrl_c
from scripts.launch.triton_server import TritonServer

BURST = 64
OVERLOAD = 400
ROUNDS = 5
OUTPUT_TOKENS = 4
READY_SECONDS = 120.0
ANSWER_SECONDS = 300.0
# The same limit for both queues: configs/triton_queue.pbtxt sets it for each priority level.
PARAMETERS = {"max_queue_size": "100"}


@dataclass(frozen=True)
class Queue:
    """A queue to measure, and the form of requests to its server."""

    name: str
    arguments: Sequence[str]
    shape: Sequence[int]
    """Shape of every input tensor."""


QUEUES = (
    Queue("the engine's (config.pbtxt)", [], [1]),
    Queue("Triton's (configs/triton_queue.pbtxt)", ["--model-config-name=triton_queue"], [1, 1]),
)


async def first_token(client: aio.InferenceServerClient, shape: Sequence[int], number: int) -> float | None:
    """Stream one request to its end. Return the seconds to the first token, or None if the request was refused."""
    fields = {
        "text_input": np.array([f"Number {number} is".encode()], dtype=np.object_),
        "stream": np.array([True]),
        "max_tokens": np.array([OUTPUT_TOKENS], dtype=np.int32),
        "ignore_eos": np.array([True]),
    }
    inputs = []
    for name, array in fields.items():
        inputs.append(aio.InferInput(name, list(shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array.reshape(shape))

    async def requests() -> AsyncIterator[dict[str, object]]:
        yield {"model_name": "llm", "inputs": inputs}

    sent, first = time.perf_counter(), None
    async for _, error in client.stream_infer(requests()):
        if error is not None:
            return None
        first = first or time.perf_counter() - sent
    return first


async def at_once(url: str, shape: Sequence[int], count: int) -> list[float | None]:
    """Send `count` requests at once. Return the time to first token of each."""
    async with aio.InferenceServerClient(url) as client, asyncio.timeout(ANSWER_SECONDS):
        return await asyncio.gather(*(first_token(client, shape, number) for number in range(count)))


def row(queue: Queue, rounds: Sequence[Sequence[float | None]]) -> str:
    """A line of the table, for some rounds of the same load."""
    served = [sorted(time for time in times if time is not None) for times in rounds]
    last = [times[-1] for times in served]
    middle = median(median(times) for times in served)
    return (
        f"| {queue.name} | {len(rounds[0])} at once | {middle:.2f} | {median(last):.2f} | {max(last):.2f} "
        f"| {median(map(len, served)):.0f} |"
    )


def measure(queue: Queue, folder: Path) -> list[str]:
    """Start a server with a queue and return its lines of the table."""
    repository = render_repository(folder / "models", parameters={"model": str(default_model()), **PARAMETERS})
    with TritonServer(repository, arguments=queue.arguments) as server:
        server.wait_ready(READY_SECONDS, ["llm"])
        asyncio.run(at_once(server.grpc_url, queue.shape, 4))  # Warm-up.
        return [
            row(queue, [asyncio.run(at_once(server.grpc_url, queue.shape, load)) for _ in range(ROUNDS)])
            for load in (BURST, OVERLOAD)
        ]


def main() -> int:
    """Measure both queues, print a Markdown table and return the exit status."""
    lines = [
        "| queue | load | first token, median (s) | the last one (s) | the same, worst round (s) | served |",
        "|---|---|---|---|---|---|",
    ]
    end_like_ctrl_c()
    try:
        for queue in tqdm(QUEUES, desc="queues", unit="server"):
            with tempfile.TemporaryDirectory(prefix="inflight-") as folder:
                lines += measure(queue, Path(folder))
    except KeyboardInterrupt:
        return 130
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
