"""Builds the content of an answer, and the events that tell of it as it grows."""

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from inflight_gateway.pieces import Arguments, Call, Piece, Text, Thought
from inflight_gateway.strict_json import read_json

Event = dict[str, Any]


class Content:
    """The blocks of one answer: thoughts, texts and calls, in the order in which the model writes them."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._open: _Block | None = None

    @property
    def has_calls(self) -> bool:
        """Whether a block is a call."""
        return any(block["type"] == "tool_use" for block in self.blocks)

    def add(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        """Add pieces, and yield the events that tell of them."""
        for piece in pieces:
            if self._open is None or isinstance(piece, Call) or not isinstance(piece, self._open.kind):
                yield from self.close()
                self._open = _block_for(piece)
                self.blocks.append(self._open.document)
                # A copy: the document grows until the event has been sent, and longer.
                yield self._event("content_block_start", content_block=dict(self._open.document))
            if not isinstance(piece, Call):
                yield self._event("content_block_delta", delta=self._open.add(piece.text))

    def close(self) -> Iterator[Event]:
        """End the last block, and yield the event that tells of it."""
        if self._open is not None:
            self._open.end()
            self._open = None
            yield self._event("content_block_stop")

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "index": len(self.blocks) - 1, **fields}


class _Block:
    """A block that grows."""

    def __init__(self, kind: type[Piece], delta: str, field: str, document: dict[str, Any]) -> None:
        """`kind`: the pieces that belong to it. `delta`: the type of what is added, and `field` where it has text."""
        self.kind, self.document = kind, document
        self._delta, self._field = delta, field
        self._texts: list[str] = []

    def add(self, text: str) -> dict[str, str]:
        """Add text, and return what tells of it."""
        self._texts.append(text)
        return {"type": self._delta, self._field: text}

    def end(self) -> None:
        """Complete the document."""
        text = "".join(self._texts)
        if self.document["type"] == "tool_use":
            self.document["input"] = _arguments(text)
        else:
            self.document[self._field] = text


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call. If they are no JSON object, as in an answer that was cut off, it holds the text.

    The key is the one that Anthropic recommends for that.
    """
    try:
        found = read_json(text or "{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": text}


def _block_for(piece: Piece) -> _Block:
    match piece:
        case Call(name):
            document = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": name, "input": {}}
            return _Block(Arguments, "input_json_delta", "partial_json", document)
        case Thought():
            return _Block(Thought, "thinking_delta", "thinking", {"type": "thinking", "thinking": "", "signature": ""})
    return _Block(Text, "text_delta", "text", {"type": "text", "text": ""})
