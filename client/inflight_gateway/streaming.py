"""Answers while they are written."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack

from inflight_client import AsyncTextStream, Chunk, Usage
from inflight_gateway.metrics import Metrics
from inflight_gateway.service import total
from inflight_gateway.sse import EventStream


class Answers:
    """The answers to the prompts of one request."""

    def __init__(self, streams: Iterable[AsyncTextStream]) -> None:
        """`streams`: one for each prompt. A generator of them starts them in `chunks`, which ends what has started."""
        self._starting = streams
        self._streams: list[AsyncTextStream] = []

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Pieces as they come, each with its prompt's index. Closing it, or a failure of one, cancels all.

        Raises:
            InflightError: a request failed.
        """
        async with AsyncExitStack() as stack:
            for stream in self._starting:
                self._streams.append(await stack.enter_async_context(stream))
            if len(self._streams) > 1:
                waiting = {asyncio.create_task(_next(stream)): i for i, stream in enumerate(self._streams)}
                stack.push_async_callback(_cancel, waiting)
                while waiting:
                    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        index = waiting.pop(task)
                        if (chunk := task.result()) is not None:
                            yield index, chunk
                            waiting[asyncio.create_task(_next(self._streams[index]))] = index
            else:  # The usual case, without a task for each token.
                async for chunk in self._streams[0]:
                    yield 0, chunk

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        return total([stream.usage for stream in self._streams])


async def _next(stream: AsyncTextStream) -> Chunk | None:
    return await anext(stream, None)


async def _cancel(tasks: Iterable[asyncio.Task[Chunk | None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def begin(events: AsyncGenerator[bytes, None], metrics: Metrics) -> EventStream:
    """The response of these events, once there is one: what fails until then is answered with a status of its own.

    Raises:
        InflightError: a request failed at once.
    """
    begun = time.perf_counter()
    first = await anext(events)
    metrics.first_token.observe(time.perf_counter() - begun)
    return EventStream(first, events)
