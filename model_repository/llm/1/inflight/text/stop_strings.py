"""Holds text back while it may still turn out to be the beginning of a stop string."""

from collections.abc import Sequence


class StopStrings:
    """Passes text through until one of `stops` completes, across any borders between the pieces.

    No more than the longest tail that some stop string begins with is ever held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, piece: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """Take the next piece of text; return what may be shown by now and whether a stop string completed.

        When several complete within the piece the one that ends first counts. It is not shown, nor is what follows it.
        """
        text = self._held + piece
        stop = self._first_to_end(text) if may_stop else None
        if stop is not None:
            self._held = ""
            return text[:stop], True
        held = self._longest_beginning(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """What is still held back, at the end of the output."""
        held, self._held = self._held, ""
        return held

    def _first_to_end(self, text: str) -> int | None:
        """Where the stop string begins that ends first in `text`; of those that end together, the longest."""
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _longest_beginning(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=0) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
