"""Text that arrives in parts, for readers that go through it once."""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

Reading: TypeAlias = Generator[None, None, _T]
"""A step of reading. It yields where it needs text that has not arrived."""

Take: TypeAlias = Callable[[str], object]
"""Takes text that has been read."""


def drop(_: str) -> None:
    """Take text and forget it."""


class Source:
    """The text of an answer as far as it has arrived and is not read.

    Readers are generators: they read in the order of the text, and yield where it goes on later. No text is looked at
    again when more arrives, except for the beginning of a text that a reader waits for.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._kept: list[str] | None = None

    def add(self, text: str) -> None:
        """Add text that has arrived."""
        self._text, self._at = self._text[self._at :] + text, 0

    def end(self) -> None:
        """Say that no more text will arrive."""
        self._ended = True

    def keep(self) -> None:
        """Keep what is read from here on, for `give_back`."""
        self._kept = []

    def kept(self) -> str:
        """Return what has been read since `keep`, and keep no more."""
        text, self._kept = "".join(self._kept or ()), None
        return text

    def peek(self) -> Reading[str]:
        """Return the next character without reading it; "" at the end."""
        while self._at == len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def skip_space(self) -> Reading[str]:
        """Read white space. Return the character after it as `peek` does."""
        while (yield from self.peek()).isspace():
            self.run(_SPACE)
        return (yield from self.peek())

    def space(self) -> Reading[str]:
        """Read white space and return it. It must not be kept."""
        self.keep()
        yield from self.skip_space()
        return self.kept()

    def accept(self, expected: str) -> Reading[bool]:
        """Read a text if it comes next, and return whether it does."""
        while len(self._text) - self._at < len(expected):
            if self._ended or not expected.startswith(self._text[self._at :]):
                return False
            yield
        if not self._text.startswith(expected, self._at):
            return False
        self.take(len(expected))
        return True

    def take(self, count: int) -> str:
        """Read so many characters, which must have arrived."""
        text = self._text[self._at : self._at + count]
        self._at += count
        if self._kept is not None:
            self._kept.append(text)
        return text

    def put_back(self, text: str) -> None:
        """Undo the reading of the text that was read last. It must not be kept."""
        if len(text) <= self._at:
            self._at -= len(text)
        else:  # Part of it is no longer there: more text has arrived since.
            self._text, self._at = text + self._text[self._at :], 0

    def rest(self, take: Take) -> Reading[None]:
        """Pass all text on."""
        while (yield from self.peek()):
            take(self.take(len(self._text) - self._at))

    def run(self, pattern: re.Pattern[str]) -> str:
        """Read as much of what has arrived as fits a pattern, which may be nothing."""
        match = pattern.match(self._text, self._at)
        return "" if match is None else self.take(match.end() - self._at)

    def until(self, markers: Sequence[str], take: Take) -> Reading[str | None]:
        """Pass text on until one of the markers, which is read too, and return the marker. None: the text has ended.

        If several markers begin at one place, the first of them counts.
        """
        pattern = re.compile("|".join(map(re.escape, markers)))
        while True:
            if (match := pattern.search(self._text, self._at)) is not None:
                take(self.take(match.start() - self._at))
                return self.take(len(match[0]))
            if self._ended:
                take(self.take(len(self._text) - self._at))
                return None
            take(self.take(len(self._text) - self._at - self._beginning(markers)))
            yield

    def _beginning(self, markers: Sequence[str]) -> int:
        """Return the length of the longest end of the text that is the beginning of a marker."""
        longest = min(max(map(len, markers)) - 1, len(self._text) - self._at)
        for length in range(longest, 0, -1):
            end = self._text[-length:]
            if any(marker.startswith(end) for marker in markers):
                return length
        return 0


_SPACE = re.compile(r"\s*")
