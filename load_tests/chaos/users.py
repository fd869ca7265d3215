"""Users who check every answer to the letter, through each door of the service."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from load_tests.chaos.doors import Door, NotAnswered, Question

HANGS = "hangs"
"""Error of a request that had neither an answer nor an error for `LIMIT_SECONDS`."""
LIMIT_SECONDS = 60.0
_PAUSE_AFTER_ERROR = 0.2
QUESTIONS = (
    Question("The capital of France is"),
    Question("Once upon a time there was a"),
    Question("To boil an egg, first"),
    Question("The three laws of motion are"),
    Question("def fibonacci(n):"),
    Question("Monday, Tuesday, Wednesday,"),
    Question("My favourite animal is the"),
    Question("In the year 1969, people"),
)


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
    questions: Sequence[Question] = QUESTIONS
    asked: list[Asked] = field(default_factory=list)
    """All requests that have ended."""
    running: dict[int, float] = field(default_factory=dict)
    """When the present request of each user began, by the user's number."""
    _answers: Mapping[Question, str] = field(default_factory=dict)

    async def learn(self) -> None:
        """Ask each question alone, and keep the answers as the right ones. Raises NotAnswered."""
        self._answers = {
            question: "".join([piece.text async for piece in self.doors[0].ask(question)])
            for question in self.questions
        }

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
            asked = await self._ask(door, self.questions[turn % len(self.questions)])
            self.asked.append(asked)
            turn += 1
            if asked.error is not None:
                await asyncio.sleep(_PAUSE_AFTER_ERROR)

    async def _ask(self, door: Door, question: Question) -> Asked:
        begun, text, error = time.monotonic(), "", None
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                async for piece in door.ask(question):
                    text += piece.text
        except NotAnswered as failure:
            error = failure.name
        except TimeoutError:
            error = HANGS
        answer = self._answers[question]
        wrong = text != answer if error is None else not answer.startswith(text)
        return Asked(door.name, begun, time.monotonic(), error, wrong)
