"""Runs coroutines that wait for time alone in no time, whatever else the machine does."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Does not wait: where nothing is ready, the time of the next timer has come."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`. Meanwhile `time.perf_counter` and the loop's time advance only while all tasks wait."""
    selector = _Selector()

    def now() -> float:
        return selector.now

    def loop() -> asyncio.AbstractEventLoop:
        made = asyncio.SelectorEventLoop(selector)
        made.time = now  # type: ignore[method-assign]
        return made

    with mock.patch.object(time, "perf_counter", now), asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(coroutine)
