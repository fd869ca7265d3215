"""Reads one answer as it arrives."""

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from inflight_gateway.pieces import Piece, Text, Thought, merged
from inflight_gateway.source import Reading, Source

Emit: TypeAlias = Callable[[Piece], object]


class Reader:
    """Gives each part of an answer to a generator that reads it, and returns what that emits."""

    def __init__(self, read: Callable[[Source, Emit], Reading[None]]) -> None:
        self._source = Source()
        self._pieces: list[Piece] = []
        self._reading: Generator[None, None, None] = read(self._source, self._pieces.append)

    def feed(self, text: str) -> list[Piece]:
        """Return what a further part of the text is, as far as that is known."""
        self._source.add(text)
        return self._go_on()

    def end(self) -> list[Piece]:
        """Return what is left at the end of the text."""
        self._source.end()
        return self._go_on()

    def _go_on(self) -> list[Piece]:
        next(self._reading, None)
        pieces = merged(self._pieces)
        self._pieces.clear()
        return pieces


def text_until(
    source: Source, markers: Sequence[str], emit: Emit, kind: type[Text | Thought] = Text
) -> Reading[tuple[str, str | None]]:
    """Emit text up to a marker. Return the white space before the marker, which is not emitted, and the marker.

    At the end of the text the marker is None, and all white space is emitted.
    """
    space: list[str] = []

    def take(text: str) -> None:
        solid = text.rstrip()
        if solid:
            emit(kind("".join(space) + solid))
            space.clear()
        space.append(text[len(solid) :])

    marker = yield from source.until(markers, take)
    if marker is None:
        emit(kind("".join(space)))
    return "".join(space), marker
