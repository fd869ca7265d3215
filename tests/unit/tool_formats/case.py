"""An answer in a format, and the pieces that it is read as."""

from typing import TypeAlias

from inflight_gateway.pieces import Arguments, Call, Piece, Text

Case: TypeAlias = tuple[str, str, list[Piece]]
"""The name of a format, an answer, and its pieces."""

ULM = '{"city": "Ulm {\\"[}", "days": 3}'


def calls(*pairs: tuple[str, str]) -> list[Piece]:
    return [piece for name, arguments in pairs for piece in (Call(name), Arguments(arguments))]


def no_call(name: str, text: str) -> Case:
    """What only looks like a call is text, of which nothing is lost."""
    return name, text, [Text(text)]
