"""Writes JSON as models are shown it and write it: with a space after commas and colons, and not only in ASCII."""

import json
from collections.abc import Iterable


def text_of(value: object) -> str:
    """Return the JSON of a value."""
    return json.dumps(value, ensure_ascii=False)


def lines_of(values: Iterable[object]) -> str:
    """Return the JSON of each value on a line of its own."""
    return "\n".join(map(text_of, values))


def inside_quotes(text: str) -> str:
    """Return the JSON of a text without its quotation marks, so that the text can be written piece by piece."""
    return text_of(text)[1:-1]
