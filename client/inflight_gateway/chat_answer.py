"""Writes the pieces of an answer as OpenAI's messages and deltas."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from inflight_gateway.pieces import Arguments, Call, Piece, Text, Thought
from inflight_gateway.responses import AnswerMessage, CallOfAnswer

TOOL_CALLS = "tool_calls"
"""The finish reason of an answer with calls."""


def new_call_id() -> str:
    """Return an id for a call."""
    return f"call_{uuid.uuid4().hex[:24]}"


class Deltas:
    """The deltas of one answer that is streamed."""

    def __init__(self) -> None:
        self._calls = 0

    def of(self, pieces: Iterable[Piece]) -> Iterator[dict[str, Any]]:
        """Yield a delta for each piece."""
        for piece in pieces:
            match piece:
                case Thought(text):
                    yield {"reasoning_content": text, "reasoning": text}
                case Text(text):
                    yield {"content": text}
                case Call(name):
                    self._calls += 1
                    function = {"name": name, "arguments": ""}
                    yield self._of_call({"id": new_call_id(), "type": "function", "function": function})
                case Arguments(text):
                    yield self._of_call({"function": {"arguments": text}})

    def _of_call(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"tool_calls": [{"index": self._calls - 1, **fields}]}

    def finish_reason(self, reason: str | None) -> str | None:
        """Return OpenAI's reason why the answer ended; None where it goes on."""
        return TOOL_CALLS if reason == "stop" and self._calls else reason


def message_of(pieces: Sequence[Piece]) -> AnswerMessage:
    """Return a whole answer."""
    text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    calls = calls_of(pieces)
    message: AnswerMessage = {"role": "assistant", "content": None if calls and not text else text, "refusal": None}
    if thought := "".join(piece.text for piece in pieces if isinstance(piece, Thought)):
        message["reasoning_content"] = message["reasoning"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def calls_of(pieces: Iterable[Piece]) -> list[CallOfAnswer]:
    """Return the calls of a whole answer."""
    calls: list[CallOfAnswer] = []
    for piece in pieces:
        if isinstance(piece, Call):
            calls.append({"id": new_call_id(), "type": "function", "function": {"name": piece.name, "arguments": ""}})
        elif isinstance(piece, Arguments):
            calls[-1]["function"]["arguments"] += piece.text
    return calls
