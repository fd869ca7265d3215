"""A link to a server that can be severed silently: packets are dropped, and no connection ends."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from load_tests.chaos.proxy import Proxy, proxy
from scripts.launch.server_process import ADDRESS


class Link:
    """A proxy on a loop of its own, for tests that block. Make one with `link`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, through: Proxy) -> None:
        self._loop, self._proxy = loop, through
        self.address = f"{ADDRESS}:{through.port}"

    def sever(self) -> None:
        self._run(self._proxy.sever)

    def mend(self) -> None:
        """Forward new connections, and those opened meanwhile. Severed ones stay so, as behind a new router."""
        self._run(self._proxy.mend)

    def _run(self, action: Callable[[], None]) -> None:
        async def run() -> None:
            action()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()


@contextmanager
def link(port: int) -> Iterator[Link]:
    """A link to a port of this machine."""
    ready: queue.SimpleQueue[Link] = queue.SimpleQueue()
    ended = asyncio.Event()

    async def forward() -> None:
        async with proxy(port) as through:
            ready.put(Link(asyncio.get_running_loop(), through))
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(forward(),))
    thread.start()
    made = ready.get(timeout=10)
    try:
        yield made
    finally:
        made._run(ended.set)
        thread.join()
