"""The pieces of which a model's answer consists once its text has been read."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
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
    whole = (piece for piece in pieces if isinstance(piece, Call) or piece.text)
    for kind, run in groupby(whole, type):
        if kind is Call:
            joined += run
        else:
            joined.append(kind("".join(piece.text for piece in run if not isinstance(piece, Call))))
    return joined
