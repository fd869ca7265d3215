"""`AsyncClient` behind the blocking methods of `Client`, so that the same tests can run on both."""

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any, Self, TypeVar

from inflight_client import AsyncClient, AsyncTextStream, Chunk, Completion

T = TypeVar("T")


class Blocking:
    """An `AsyncClient` on an event loop in a separate thread, with blocking methods."""

    def __init__(self, url: str = "127.0.0.1:8001", **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.client = self.run(self._make(url, options))

    async def _make(self, url: str, options: dict[str, Any]) -> AsyncClient:
        return AsyncClient(url, **options)

    def run(self, awaitable: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result()

    def stream(self, *args: Any, **options: Any) -> "BlockingStream":
        async def start() -> AsyncTextStream:
            return self.client.stream(*args, **options)

        return BlockingStream(self, self.run(start()))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        return lambda *args, **options: self.run(method(*args, **options))

    def close(self) -> None:
        self.run(self.client.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingStream:
    """See `Blocking`."""

    def __init__(self, client: Blocking, stream: AsyncTextStream) -> None:
        self._client, self._stream = client, stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._client.run(anext(self._stream, None))
        if chunk is None:
            raise StopIteration
        return chunk

    def cancel(self) -> None:
        self._client.run(self._stream.cancel())

    def completion(self) -> Completion:
        return self._client.run(self._stream.completion())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._client.run(self._stream.__aexit__(*error))
