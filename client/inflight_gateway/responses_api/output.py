"""Builds the items of an answer, and the events that tell of them as they grow."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inflight_gateway.chat_answer import new_call_id
from inflight_gateway.pieces import Arguments, Call, Piece, Text, Thought
from inflight_gateway.responses import ChosenToken
from inflight_gateway.responses_api.function_name import FunctionName

Event = dict[str, Any]
"""An event of a stream, without its sequence number."""

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


class Output:
    """The items of one answer: thoughts, messages and calls, in the order in which the model writes them."""

    def __init__(self, names: Mapping[str, FunctionName]) -> None:
        """`names`: how calls name functions, by the names that the model sees."""
        self._names = names
        self.items: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self._tokens: list[ChosenToken] = []
        """Those since the last piece: what they are is not known yet."""

    def add(self, pieces: Sequence[Piece], tokens: Sequence[ChosenToken] = ()) -> Iterator[Event]:
        """Add pieces, and yield the events that tell of them. `tokens`: log-probabilities of what has arrived."""
        self._tokens += tokens
        for piece in pieces:
            if self._open is None or isinstance(piece, Call) or not isinstance(piece, self._open.kind):
                yield from self._close(COMPLETED)
                self._open = self._item_for(piece, len(self.items))
                self.items.append(self._open.document)
                yield from self._open.begin()
                if isinstance(piece, Text):
                    self._tokens = _without_markers(self._tokens, piece.text)
            if isinstance(piece, Text):
                yield self._open.add(piece.text, self._tokens)
                self._tokens = []
            elif not isinstance(piece, Call):
                yield self._open.add(piece.text)
        if pieces:  # Only messages have log-probabilities.
            self._tokens = []

    def close(self, status: str) -> Iterator[Event]:
        """End the answer with a status, and yield the events that tell of its end."""
        if isinstance(self._open, _Message) and self._tokens:  # Such as the end-of-sequence token.
            yield self._open.add("", self._tokens)
        yield from self._close(status)

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
            self._open = None

    def _item_for(self, piece: Piece, index: int) -> "_Item":
        match piece:
            case Call(name):
                return _FunctionCall(index, self._names.get(name, FunctionName(name)))
            case Thought():
                return _Reasoning(index)
        return _Message(index)


def _without_markers(tokens: list[ChosenToken], text: str) -> list[ChosenToken]:
    """Leave out the first tokens if the others are enough for the text that begins a message.

    They ended a thought or a call, or say that an answer follows.
    """
    while len(tokens) > 1 and text in "".join(token["token"] for token in tokens[1:]):
        tokens = tokens[1:]
    return tokens


class _Item:
    """An item that grows."""

    kind: type[Piece]
    """The pieces that belong to it."""
    delta = ""
    """The type of the events that tell of more text."""

    def __init__(self, index: int, prefix: str, fields: dict[str, Any]) -> None:
        self.document = {"id": f"{prefix}_{uuid.uuid4().hex}", "status": IN_PROGRESS, **fields}
        self._place = {"item_id": self.document["id"], "output_index": index}
        self._pieces: list[str] = []

    def begin(self) -> Iterator[Event]:
        """Yield the events of its beginning."""
        yield self._whole("response.output_item.added")

    def add(self, text: str, tokens: Sequence[ChosenToken] = ()) -> Event:
        """Add text, and return the event that tells of it. `tokens`: those of a message."""
        self._pieces.append(text)
        return {"type": f"{self.delta}.delta", **self._place, "delta": text}

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events of its end."""
        self.document["status"] = status
        yield self._whole("response.output_item.done")

    def _whole(self, kind: str) -> Event:
        # A copy: the document grows until the event has been sent, and longer.
        return {"type": kind, "output_index": self._place["output_index"], "item": dict(self.document)}


class _Parted(_Item):
    """An item whose text is its only part."""

    part: dict[str, Any]

    def __init__(self, index: int, prefix: str, fields: dict[str, Any]) -> None:
        super().__init__(index, prefix, {**fields, "content": []})
        self._place["content_index"] = 0

    def begin(self) -> Iterator[Event]:
        """See `_Item`."""
        yield from super().begin()
        yield {"type": "response.content_part.added", **self._place, "part": self._part("")}

    def end(self, status: str) -> Iterator[Event]:
        """See `_Item`."""
        text = "".join(self._pieces)
        self.document["content"] = [self._part(text)]
        yield {"type": f"{self.delta}.done", **self._place, "text": text, **self._extras()}
        yield {"type": "response.content_part.done", **self._place, "part": self._part(text)}
        yield from super().end(status)

    def _part(self, text: str) -> dict[str, Any]:
        return {**self.part, "text": text, **self._extras()}

    def _extras(self) -> dict[str, Any]:
        """Further fields of the part, and of the event of its whole text."""
        return {}


class _Message(_Parted):
    kind, delta = Text, "response.output_text"
    part = {"type": "output_text", "annotations": []}  # noqa: RUF012 - it is copied, never changed

    def __init__(self, index: int) -> None:
        super().__init__(index, "msg", {"type": "message", "role": "assistant"})
        self._tokens: list[ChosenToken] = []

    def add(self, text: str, tokens: Sequence[ChosenToken] = ()) -> Event:
        """See `_Item`."""
        self._tokens += tokens
        return {**super().add(text), "logprobs": tokens}

    def _extras(self) -> dict[str, Any]:
        return {"logprobs": list(self._tokens)}


class _Reasoning(_Parted):
    kind, delta = Thought, "response.reasoning_text"
    part = {"type": "reasoning_text"}  # noqa: RUF012

    def __init__(self, index: int) -> None:
        super().__init__(index, "rs", {"type": "reasoning", "summary": []})


class _FunctionCall(_Item):
    kind, delta = Arguments, "response.function_call_arguments"

    def __init__(self, index: int, name: FunctionName) -> None:
        fields = {"type": "function_call", "call_id": new_call_id(), "name": name.name, "arguments": ""}
        if name.namespace is not None:
            fields["namespace"] = name.namespace
        super().__init__(index, "fc", fields)

    def end(self, status: str) -> Iterator[Event]:
        """See `_Item`."""
        self.document["arguments"] = arguments = "".join(self._pieces)
        name = self.document["name"]
        yield {"type": f"{self.delta}.done", **self._place, "name": name, "arguments": arguments}
        yield from super().end(status)
