"""What the gateway asks of a server that hangs, while many requests wait for the answer."""

import asyncio
from types import SimpleNamespace
from typing import Any

from inflight_client import ModelDescription, TransportError
from inflight_gateway.formats import AUTO
from inflight_gateway.served_model import ServedModel
from inflight_gateway.ui.observer import INTERVAL_SECONDS, Observer, Problem

SMALL = ModelDescription(
    model="small",
    vocab_size=8,
    max_model_len=16,
    chat_template=None,
    template_variables=(),
    special_tokens={},
    eos_token_ids=(),
)


class Server:
    """Answers a question when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.tell = asyncio.Event()
        self.is_away = True

    async def describe_model(self) -> ModelDescription:
        self.asked += 1
        await self.tell.wait()
        if self.is_away:
            raise TransportError("nothing came from it")
        return SMALL

    async def model_info(self) -> Any:
        await self.describe_model()
        return SimpleNamespace(parameters={})


async def begun(*tasks: asyncio.Task[Any]) -> None:
    """Let tasks run until they wait."""
    for _ in range(4 * len(tasks)):
        await asyncio.sleep(0)


def test_all_that_wait_for_a_server_that_hangs_get_its_one_error() -> None:
    async def ask() -> None:
        server: Any = Server()
        model = ServedModel(server, AUTO, AUTO)
        waiting = [asyncio.create_task(model.formats()) for _ in range(50)]
        await begun(*waiting)
        server.tell.set()
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(error) for error in errors] == ["nothing came from it"] * 50
        assert server.asked == 1
        # Whoever comes later asks anew: the server may answer now.
        server.is_away = False
        await model.formats()
        assert server.asked == 2

    asyncio.run(ask())


def test_who_waits_asks_if_the_one_who_asked_has_gone() -> None:
    async def ask() -> None:
        server: Any = Server()
        model = ServedModel(server, AUTO, AUTO)
        first, second = (asyncio.create_task(model.formats()) for _ in range(2))
        await begun(first, second)
        first.cancel()
        await begun(first, second)
        server.is_away = False
        server.tell.set()
        assert (await second).template_variables == frozenset()
        assert first.cancelled()
        assert server.asked == 2

    asyncio.run(ask())


def test_names_that_no_adapter_has_make_the_gateway_ask_once_in_a_while() -> None:
    async def ask() -> None:
        server: Any = Server()
        server.is_away = False
        server.tell.set()
        model = ServedModel(server, AUTO, AUTO)
        assert [await model.has_adapter(f"none-{number}") for number in range(50)] == [False] * 50
        assert server.asked == 1

    asyncio.run(ask())


def test_all_who_watch_a_server_that_hangs_get_its_one_error() -> None:
    async def watch() -> None:
        server: Any = Server()
        observer = Observer(server, Any, "llm")  # type: ignore[arg-type]
        waiting = [asyncio.create_task(observer.observe()) for _ in range(16)]
        await begun(*waiting)
        await asyncio.sleep(2 * INTERVAL_SECONDS)  # longer than an observation stays fresh
        server.tell.set()
        assert await asyncio.gather(*waiting) == [Problem("the model's server does not answer")] * 16
        assert server.asked == 1

    asyncio.run(watch())
