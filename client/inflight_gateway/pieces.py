"""The pieces of which a model's answer consists once its text has been read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Thought:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call begins. What follows until the next call are its arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of the last call, which are JSON."""

    text: str


Piece: TypeAlias = Thought | Text | Call | Arguments


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces with neighbours of one kind joined, and without empty ones."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Call):
            joined.append(piece)
        elif joined and type(joined[-1]) is type(piece):
            joined[-1] = type(piece)(joined[-1].text + piece.text)
        elif piece.text:
            joined.append(piece)
    return joined
