"""Whole answers, and the right ones."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from load_tests.chaos.doors import Door, Piece, Question


class Wrong(Exception):
    """An answer differs from the right one, or an error from the expected one. The message says both."""


@dataclass
class Sample:
    """One sample of an answer, as far as it came."""

    text: str = ""
    logprobs: tuple[float, ...] = ()
    finish_reason: str | None = None

    def add(self, piece: Piece) -> None:
        """Add a piece."""
        self.text += piece.text
        self.logprobs += piece.logprobs
        self.finish_reason = piece.finish_reason or self.finish_reason


async def whole_answer(door: Door, question: Question) -> list[Sample]:
    """Ask, and return all samples. Raises NotAnswered."""
    samples = [Sample() for _ in range(question.sampling.get("n", 1))]
    async for piece in door.ask(question):
        samples[piece.sample].add(piece)
    return samples


class Answers:
    """The right answers."""

    def __init__(self, right: Mapping[Question, list[Sample]]) -> None:
        self._right = right

    @classmethod
    async def learn(cls, door: Door, questions: Iterable[Question]) -> "Answers":
        """Ask each question alone. Raises NotAnswered."""
        return cls({question: await whole_answer(door, question) for question in questions})

    def check(self, question: Question, given: list[Sample]) -> None:
        """Raises Wrong unless this is the right answer to the letter."""
        if given != self._right[question]:
            raise Wrong(f"{question} has the answer {given}; it must be {self._right[question]}")

    def check_text(self, question: Question, text: str) -> None:
        """Raises Wrong unless the right answer is `text`."""
        (right,) = self._right[question]
        if right.text != text:
            raise Wrong(f"{question} has the answer {text!r}; it must be {right.text!r}")

    def check_beginning(self, question: Question, text: str) -> None:
        """Raises Wrong unless the right answer begins with `text`."""
        (right,) = self._right[question]
        if not right.text.startswith(text):
            raise Wrong(f"{question} has the answer {text!r}; it must begin {right.text!r}")
