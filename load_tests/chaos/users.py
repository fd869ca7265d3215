"""Users who check every answer to the letter, through each way into the service."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx
import openai

from inflight_client import AsyncClient, InflightError

MAX_TOKENS = 48
HANGS = "hangs"
"""Error of a request that had neither an answer nor an error for `LIMIT_SECONDS`."""
LIMIT_SECONDS = 60.0
_PAUSE_AFTER_ERROR = 0.2
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "To boil an egg, first",
    "The three laws of motion are",
    "def fibonacci(n):",
    "Monday, Tuesday, Wednesday,",
    "My favourite animal is the",
    "In the year 1969, people",
)


class NotAnswered(Exception):
    """A request ended with an error. The message is the error's name."""


class Door(Protocol):
    """A way into the service."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    def ask(self, prompt: str) -> AsyncIterator[str]:
        """Yield the pieces of a greedy answer. Raises NotAnswered unless the answer is complete."""


@dataclass(frozen=True)
class TritonDoor:
    """Triton's gRPC or HTTP endpoint."""

    name: str
    client: AsyncClient

    async def ask(self, prompt: str) -> AsyncIterator[str]:
        """See `Door`."""
        try:
            async with self.client.stream(prompt, max_tokens=MAX_TOKENS, temperature=0, ignore_eos=True) as chunks:
                async for chunk in chunks:
                    yield chunk.text
        except InflightError as error:
            raise NotAnswered(type(error).__name__) from error


@dataclass(frozen=True)
class WholeDoor:
    """The model `completion`, which answers in one piece, over HTTP."""

    name: str
    client: httpx.AsyncClient

    async def ask(self, prompt: str) -> AsyncIterator[str]:
        """See `Door`."""
        body = {"text_input": prompt, "exclude_input_in_output": True}
        body |= {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
        try:
            response = await self.client.post("/v2/models/completion/generate", json=body)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise NotAnswered(type(error).__name__) from error
        yield response.json()["text_output"]


@dataclass(frozen=True)
class GatewayDoor:
    """The gateway's OpenAI-compatible endpoint."""

    name: str
    client: openai.AsyncOpenAI

    async def ask(self, prompt: str) -> AsyncIterator[str]:
        """See `Door`."""
        finished = False
        try:
            stream = await self.client.completions.create(
                model="llm", prompt=prompt, max_tokens=MAX_TOKENS, temperature=0, stream=True,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for chunk in stream:
                yield chunk.choices[0].text
                finished = finished or chunk.choices[0].finish_reason is not None
        except (openai.OpenAIError, httpx.HTTPError) as error:
            raise NotAnswered(type(error).__name__) from error
        if not finished:
            raise NotAnswered("cut off without an error")


@dataclass(frozen=True)
class Asked:
    """One request. Times are seconds of `time.monotonic`."""

    door: str
    begun: float
    ended: float
    error: str | None
    wrong: bool
    """Whether a piece of text differs from the right answer."""

    @property
    def right(self) -> bool:
        """Whether the whole right answer came."""
        return self.error is None and not self.wrong


@dataclass
class Users:
    """Closed loops over the doors, in turn."""

    doors: Sequence[Door]
    asked: list[Asked] = field(default_factory=list)
    """All requests that have ended."""
    running: dict[int, float] = field(default_factory=dict)
    """When the present request of each user began, by the user's number."""
    _answers: Mapping[str, str] = field(default_factory=dict)

    async def learn(self) -> None:
        """Ask each prompt alone, and keep the answers as the right ones. Raises NotAnswered."""
        self._answers = {prompt: "".join([piece async for piece in self.doors[0].ask(prompt)]) for prompt in PROMPTS}

    async def run(self, number: int) -> None:
        """Ask as `number` users until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            for user in range(number):
                group.create_task(self._user(user))

    async def _user(self, user: int) -> None:
        door = self.doors[user % len(self.doors)]
        turn = user
        while True:
            self.running[user] = time.monotonic()
            asked = await self._ask(door, PROMPTS[turn % len(PROMPTS)])
            self.asked.append(asked)
            turn += 1
            if asked.error is not None:
                await asyncio.sleep(_PAUSE_AFTER_ERROR)

    async def _ask(self, door: Door, prompt: str) -> Asked:
        begun, text, error = time.monotonic(), "", None
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                async for piece in door.ask(prompt):
                    text += piece
        except NotAnswered as failure:
            error = str(failure)
        except TimeoutError:
            error = HANGS
        answer = self._answers[prompt]
        wrong = text != answer if error is None else not answer.startswith(text)
        return Asked(door.name, begun, time.monotonic(), error, wrong)
