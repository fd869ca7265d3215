"""Plugs: long requests that occupy all slots of the engine, so that other requests have to wait."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import tritonclient.grpc.aio as aio

from scripts.launch.default_model import default_model
from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer
from tests.running_server import running_server
from tests.triton.wire import Answer, ask, together

RUNNING = 4
LONG = {"text_input": "A very long story:", "stream": True, "max_tokens": 1500, "temperature": 0.0}
SHORT = {"text_input": "One two", "stream": True, "max_tokens": 4, "temperature": 0.0}

Ask = Callable[..., Any]


def start(folder: Path, parameters: dict[str, str], *arguments: str) -> AbstractContextManager[TritonServer]:
    # Room for the plugs. By default the cache takes a fifth of the memory, whose pages take seconds to allocate.
    parameters = {"model": str(default_model()), "kv_cache_tokens": "8192", **parameters}
    repository = render_repository(folder / "models", parameters=parameters)
    return running_server(repository, ["llm"], arguments)


class Plugs:
    """Long requests that occupy every slot of the engine until they are cancelled ("pulled")."""

    def __init__(self, client: aio.InferenceServerClient, *, batched: bool = False) -> None:
        self._client, self._batched = client, batched
        self._tasks: list[asyncio.Task[Answer]] = []

    async def insert(self) -> None:
        """Start the plugs, and return when all of them are running."""
        answers = [Answer() for _ in range(RUNNING)]
        for answer in answers:
            self._tasks.append(asyncio.create_task(ask(self._client, LONG, batched=self._batched, into=answer)))
        while not all(answer.pieces for answer in answers):
            assert self.all_run()
            await asyncio.sleep(0.02)

    def all_run(self) -> bool:
        """Whether no plug has ended."""
        return not any(task.done() for task in self._tasks)

    def pull(self, count: int = RUNNING) -> None:
        """Cancel `count` plugs."""
        for task in self._tasks[:count]:
            task.cancel()
        del self._tasks[:count]


def plugged(server: TritonServer, make: Callable[[Ask, Plugs], Any], *, batched: bool = False) -> Any:
    """Run the coroutine that `make` returns while all slots are occupied, and cancel the plugs afterwards."""

    def run(client: aio.InferenceServerClient) -> list[Any]:
        async def scenario() -> Any:
            plugs = Plugs(client, batched=batched)
            await plugs.insert()
            try:
                return await make(lambda fields, **options: ask(client, fields, batched=batched, **options), plugs)
            finally:
                plugs.pull()

        return [scenario()]

    return together(server.grpc_url, run)[0]


def first_tokens(answers: Sequence[Answer]) -> list[float]:
    return [answer.times[0] for answer in answers if answer.error is None]


def refusals(answers: Sequence[Answer]) -> list[str]:
    return [answer.error for answer in answers if answer.error is not None]


async def wait_for(tasks: Sequence[asyncio.Task[Any]], count: int) -> None:
    """Return when at least `count` tasks are done."""
    while sum(task.done() for task in tasks) < count:
        await asyncio.sleep(0.02)


async def listed_when(server: TritonServer, reached: Callable[[dict[str, float]], bool]) -> None:
    """Return when `reached` is true for the unfinished requests: a mapping from request id to age in seconds."""
    url = f"http://{server.http_url}/v2/models/llm/generate"
    async with httpx.AsyncClient(timeout=60) as http, asyncio.timeout(20):
        listed: dict[str, float] = {}
        while not reached(listed):
            entries = json.loads((await http.post(url, json={"list_requests": True})).json()["text_output"])
            listed = {entry["request_id"]: entry["seconds"] for entry in entries}
