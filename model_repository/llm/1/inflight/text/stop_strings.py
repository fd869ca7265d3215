"""Holds text back while it may be the beginning of a stop string."""

from collections.abc import Sequence


class StopStrings:
    """Passes text through until one of `stops` is complete. A stop string may span several pieces of text.

    Only the longest tail of the text that is also the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str], *, shown: bool = False) -> None:
        """`shown`: the stop string that ends the text is part of it."""
        self._stops, self._shown = stops, shown
        self._held = ""
        self.found: str | None = None
        """The stop string that has ended the text."""

    def push(self, piece: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """Add the next piece of text. Return the text that may be shown now, and whether a stop string is complete.

        If several stop strings are complete within the piece, the one that ends first counts. The text after it is not
        returned, nor is the stop string itself unless it is to be shown. One that ends in an earlier piece, which must
        not stop, does not count any more.
        """
        text = self._held + piece
        stop = self._first_to_end(text, after=len(self._held)) if may_stop else None
        if stop is not None:
            self._held = ""
            self.found = text[slice(*stop)]
            return text[: stop[self._shown]], True
        held = self._longest_beginning(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """At the end of the output, return the text that is still held back."""
        held, self._held = self._held, ""
        return held

    def _first_to_end(self, text: str, after: int) -> tuple[int, int] | None:
        """Return start and end of the stop string that ends first behind `after`. If several end there, the longest."""
        starts = {stop: text.find(stop, max(0, after + 1 - len(stop))) for stop in self._stops}
        found = [(at + len(stop), at) for stop, at in starts.items() if at >= 0]
        return min(found)[::-1] if found else None

    def _longest_beginning(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=0) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
