"""Answers that are written piece by piece, such as log-probabilities of long prompts, or many embeddings.

As Python's objects, such an answer takes several times the memory of its JSON, and to write it at once would hold up
all other clients. So a part of it is made when it is written, and that is when the client has read what is before it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse

_JSON = "application/json"
# Less would only cost time: each piece is made by another call to a thread.
_PIECE_CHARACTERS = 64 * 1024


def json_response(document: Mapping[str, Any], *, in_pieces: bool) -> Response:
    """Return a document as a response. An iterator in it becomes a list. `in_pieces`: it may be large.

    Starlette reads the pieces in a thread. So other clients are served meanwhile.
    """
    if in_pieces:
        return StreamingResponse(_joined(json_pieces(document)), media_type=_JSON)
    return Response("".join(json_pieces(document)), media_type=_JSON)


def json_pieces(value: Any) -> Iterator[str]:
    """Yield the JSON of a value, in which iterators become lists. Their elements are read when they are written."""
    if isinstance(value, Iterator):
        begin = "["
        for element in value:
            yield begin
            yield from json_pieces(element)
            begin = ","
        yield "[]" if begin == "[" else "]"
    elif isinstance(value, dict) and any(isinstance(part, Iterator) for part in value.values()):
        begin = "{"
        for key, part in value.items():
            yield f"{begin}{_written(key)}:"
            yield from json_pieces(part)
            begin = ","
        yield "}"
    else:
        yield _written(value)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _joined(texts: Iterator[str]) -> Iterator[str]:
    """Join short texts, so that there are fewer."""
    waiting: list[str] = []
    length = 0
    for text in texts:
        waiting.append(text)
        length += len(text)
        if length >= _PIECE_CHARACTERS:
            yield "".join(waiting)
            waiting, length = [], 0
    yield "".join(waiting)
