"""Ordinary users, and one beside them who is now ordinary and now the worst."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from load_tests.chaos.doors import Door, NotAnswered, Question
from load_tests.endpoints import Endpoint
from load_tests.failures import RequestFailed
from load_tests.neighbour.worst import Worst
from load_tests.prompts import PlannedRequest

_SETTLE_SECONDS = 3.0
_PAUSE_SECONDS = 1.0


@dataclass
class Ordinary:
    """One user who asks one ordinary request after the other."""

    name: str
    """Also that of the user's tenant."""
    endpoint: Endpoint
    requests: Iterator[PlannedRequest]
    tokens: int = 0
    """Output tokens so far."""
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Ask until this is cancelled."""
        for request in self.requests:
            asked = replace(request, tenant=self.name)
            try:
                async for tokens in self.endpoint.ask(asked, asked.prompt()):
                    self.tokens += tokens
            except RequestFailed as failure:
                self.failures.append(f"{failure.kind}: {failure}")
                await asyncio.sleep(_PAUSE_SECONDS)


class Neighbour:
    """The worst user. The requests go through one door, under one tenant."""

    def __init__(self, door: Door, chance: random.Random, tenant: str | None) -> None:
        """`tenant` is None where the door's key says it."""
        self._door, self._chance, self._tenant = door, chance, tenant
        self.sent = 0
        self.unexpected: list[str] = []
        """How requests ended that should have been refused or answered, and were not."""

    async def run(self, worst: Worst) -> None:
        """Send requests of one kind until this is cancelled."""
        while True:
            question = worst.make(self._chance)
            if self._tenant is not None:
                question = question.but(tenant=self._tenant)
            self.sent += 1
            try:
                await self._ask(question, worst.leaves_after)
            except NotAnswered as refusal:
                if not worst.refused:
                    self.unexpected.append(f"refused with {refusal}")
            else:
                if worst.refused:
                    self.unexpected.append("answered, although it must be refused")

    async def _ask(self, question: Question, leaves_after: int | None) -> None:
        async with contextlib.aclosing(self._door.ask(question)) as pieces:
            left = leaves_after
            async for _ in pieces:
                left = None if left is None else left - 1
                if left == 0:
                    break


async def tokens_per_second(users: Sequence[Ordinary], seconds: float) -> float:
    """The output tokens per second of these users, who run, after what runs beside them has had its effect."""
    await asyncio.sleep(_SETTLE_SECONDS)
    begun, before = time.monotonic(), sum(user.tokens for user in users)
    await asyncio.sleep(seconds)
    return (sum(user.tokens for user in users) - before) / (time.monotonic() - begun)


@contextlib.asynccontextmanager
async def running(*tasks: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines, and cancel them at the end. Raises what one of them has raised."""
    started = [asyncio.create_task(task) for task in tasks]
    try:
        yield
    finally:
        for task in started:
            task.cancel()
        ends = await asyncio.gather(*started, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end
