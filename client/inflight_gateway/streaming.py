"""Streams answers while the server generates them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack

from inflight_client import AsyncTextStream, Chunk, PerfMetrics, Usage
from inflight_gateway import sse
from inflight_gateway.metrics import Metrics
from inflight_gateway.sse import ErrorEvent, EventStream, error_as_event
from inflight_gateway.tracing import note_first_chunk
from inflight_gateway.usage import total


class Answers:
    """The answers to the prompts of one request."""

    def __init__(self, streams: Iterable[AsyncTextStream]) -> None:
        """`streams`: one per prompt. If it is a generator, `chunks` starts the streams, and ends those it started."""
        self._starting = streams
        self._streams: list[AsyncTextStream] = []
        self.finish_reasons: list[str] = []
        """Those of the answers that have ended, in the order of their ends."""

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Yield chunks as they arrive, each with the index of its prompt.

        If the generator is closed or one request fails, all requests are cancelled.

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
                            self._note_end(chunk)
                            yield index, chunk
                            waiting[asyncio.create_task(_next(self._streams[index]))] = index
            else:  # The usual case does not need a task per token.
                async for chunk in self._streams[0]:
                    self._note_end(chunk)
                    yield 0, chunk

    def _note_end(self, chunk: Chunk) -> None:
        if chunk.finish_reason is not None:
            self.finish_reasons.append(chunk.finish_reason)

    def prompt_ids(self, index: int) -> list[int]:
        """The tokens of a prompt, from its first chunk on. Empty if they were not asked for."""
        prompt = self._streams[index].prompt
        return [] if prompt is None else list(prompt.token_ids)

    @property
    def usage(self) -> Usage:
        """The number of tokens so far."""
        return total([stream.usage for stream in self._streams])

    @property
    def perf(self) -> list[PerfMetrics]:
        """What the server did for each answer, at the end and if it was asked for."""
        return [answer for stream in self._streams for answer in stream.perf]


async def _next(stream: AsyncTextStream) -> Chunk | None:
    return await anext(stream, None)


async def _cancel(tasks: Iterable[asyncio.Task[Chunk | None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def begin(
    events: AsyncGenerator[bytes, None], metrics: Metrics, error_event: ErrorEvent = error_as_event
) -> EventStream:
    """Wait for the first event, and return the response. `error_event` encodes an error that comes later.

    An error before the first event can still become a response with its own status. After `KEEP_ALIVE_SECONDS`, the
    response begins without an event: a request for which that takes so long has been accepted, as a rule.

    Raises:
        InflightError: a request failed before the response began.
    """
    first = asyncio.create_task(_first(events, metrics))
    try:
        await asyncio.wait({first}, timeout=sse.KEEP_ALIVE_SECONDS)
    except asyncio.CancelledError:
        first.cancel()
        await asyncio.wait({first})
        raise
    if first.done():
        first.result()
    return EventStream(first, events, error_event)


async def _first(events: AsyncGenerator[bytes, None], metrics: Metrics) -> bytes:
    begun = time.perf_counter()
    event = await anext(events)
    seconds = time.perf_counter() - begun
    metrics.first_token.observe(seconds)
    note_first_chunk(seconds)
    return event
