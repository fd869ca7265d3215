"""Notices that a server cannot be reached any more, for asyncio."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from inflight_client.transport.silence import Silence, Step

# More than an HTTP client needs in the time of a probe, to connect and to read an answer.
_TURNS = 4


class AsyncFailureDetector:
    """Does what `FailureDetector` does, with a task in place of the thread."""

    def __init__(
        self,
        seconds: float,
        probe: Callable[[], Coroutine[Any, Any, None]],
        give_up: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """See `FailureDetector`, but `probe` waits for the answer. It is cancelled when it takes too long."""
        self._silence = Silence(seconds)
        self._ask, self._give_up = probe, give_up
        self._num_running = 0
        self._task: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._closed = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the server while a request runs."""
        self._num_running += 1
        if self._task is None and self._silence.tick_seconds < math.inf and not self._closed:
            self._task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._num_running -= 1

    def heard(self) -> None:
        """Something came from the server."""
        self._silence.heard()

    async def close(self) -> None:
        """End the tasks. Call it before the probe's connection is closed."""
        self._closed = True
        tasks = [task for task in (self._task, self._probe) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch(self) -> None:
        try:
            while self._num_running or self._silence.is_probed:
                await self._tick()
                match self._silence.tick():
                    case Step.PROBE:
                        self._drop_probe()
                        self._probe = asyncio.create_task(self._ask())
                    case Step.GIVE_UP:
                        await self._give_up()
        finally:
            self._drop_probe()
            self._task = None

    async def _tick(self) -> None:
        await asyncio.sleep(self._silence.tick_seconds)
        # The answer to a probe takes several turns of the event loop. If other tasks prolong the turns, ticks take
        # longer, too.
        for _ in range(_TURNS - 1):
            await asyncio.sleep(0)

    def _drop_probe(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
