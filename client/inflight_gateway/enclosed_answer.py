"""An answer that stands between texts of its own, such as <response> and </response>."""

from collections.abc import Iterable

from inflight_gateway.pieces import Piece, Text
from inflight_gateway.reader import Emit, Reader, text_until
from inflight_gateway.source import Reading, Source


class EnclosedAnswer:
    """Passes the pieces of an answer on, without the text that ends it."""

    def __init__(self, end: str, emit: Emit) -> None:
        self._end = end
        self._emit = emit
        self._texts = Reader(self._read)

    def take(self, piece: Piece) -> None:
        """Pass a piece on. The beginning of the end of the answer waits for the next piece."""
        if isinstance(piece, Text):
            self._pass_on(self._texts.feed(piece.text))
        else:
            self.end()
            self._emit(piece)

    def end(self) -> None:
        """Pass on what still waits. Other pieces may follow, such as calls."""
        self._pass_on(self._texts.end())
        self._texts = Reader(self._read)

    def _pass_on(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._emit(piece)

    def _read(self, source: Source, emit: Emit) -> Reading[None]:
        before, marker = yield from text_until(source, (self._end,), emit)
        if marker is None:
            return
        after = yield from source.space()
        if (yield from source.peek()):  # As a rule, this is the end of the text.
            emit(Text(before + after))
            yield from source.rest(lambda text: emit(Text(text)))
