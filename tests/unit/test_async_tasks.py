"""One asyncio client that several tasks use at once."""

import asyncio
import math
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, Self

import pytest

from inflight_client import AsyncClient, AsyncTextStream, RequestCancelled, RetryPolicy, Timeouts, Usage
from inflight_client.options import Options, TimeLimits
from inflight_client.request import Request, make_request
from inflight_client.response import Reply
from inflight_client.transport.grpc_async import AsyncGrpcCall, AsyncGrpcConnection


def test_a_stream_can_be_left_while_another_task_reads_it() -> None:
    async def scenario() -> str:
        reading, left = asyncio.Event(), asyncio.Event()

        class Waiting:
            """A connection and a call, whose only reply comes when the stream was left. Cancelling it does nothing."""

            def start(self, request: Request, limits: TimeLimits) -> Self:
                return self

            async def replies(self) -> AsyncGenerator[Reply, None]:
                reading.set()
                await left.wait()
                yield Reply(["a"], ["stop"], [], [], Usage(1, 1))

            async def cancel(self) -> None:
                pass

        connection: Any = Waiting()
        request = make_request("llm", "one", None, {}, stream=True)
        async with AsyncTextStream(connection, request, Timeouts(), RetryPolicy()) as stream:
            answer = asyncio.create_task(stream.completion())
            await reading.wait()
        left.set()
        return (await answer).text

    assert asyncio.run(scenario()) == "a"


def test_a_second_cancellation_changes_nothing() -> None:
    """Its task was not cancelled, so whoever reads must not see CancelledError."""

    class Cancelled:
        """A call of gRPC that has just been cancelled: its end has not reached the reader."""

        def __init__(self) -> None:
            self.ended = asyncio.Event()

        def cancel(self) -> bool:
            has_run = not self.ended.is_set()
            self.ended.set()
            return has_run

        def __aiter__(self) -> Self:
            return self

        async def __anext__(self) -> Any:
            await self.ended.wait()
            raise asyncio.CancelledError

    async def scenario() -> None:
        connection = AsyncGrpcConnection(Options("127.0.0.1:1", None, {}, 1.0, math.inf))
        channel: Any = SimpleNamespace(is_lost=False)
        call = AsyncGrpcCall(Cancelled(), channel, connection, "llm", TimeLimits(10, 10, 10))
        reader = asyncio.ensure_future(anext(call.replies()))
        await asyncio.sleep(0)
        await call.cancel()
        await call.cancel()
        with pytest.raises(RequestCancelled):
            await reader
        await connection.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_closing_the_client_ends_the_questions_of_other_tasks(scheme: str) -> None:
    """These tasks were not cancelled, as those are that see CancelledError."""

    async def scenario() -> None:
        asked = asyncio.Event()
        silent = await asyncio.start_server(lambda *_: asked.set(), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        client = AsyncClient(f"{scheme}://127.0.0.1:{port}")
        is_ready = asyncio.create_task(client.is_ready())
        info = asyncio.create_task(client.server_info())
        await asked.wait()
        await client.close()
        assert await is_ready is False
        with pytest.raises(RequestCancelled):
            await info
        silent.close()

    asyncio.run(scenario())
