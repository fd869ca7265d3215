"""Reads JSON that can be written again: what is infinite, not Unicode or too deep is refused.

Python's parser takes all of this, and its writer fails on it later, in an answer or on the way to the server.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 128
"""How deep lists and objects may be in each other. Whatever walks through them recursively stays far from its limit."""

# Half of an escaped emoji, for example. As a rule the other half is there, too; only then is it one character.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_CONTAINERS = (dict, list)


class Unwritable(ValueError):
    """A value of a JSON text cannot be written again.

    Args:
        field: its path, such as `messages[0].content`; "" for the whole text.
        what: what is wrong with it.
    """

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field or 'the JSON'} {what}")
        self.field = field
        self.what = what


def read_json(text: str) -> Any:
    """Return what a JSON text means.

    Raises:
        ValueError: it is not JSON, or `Unwritable`.
        RecursionError: it is far too deep.
    """
    all_finite = True

    def number(written: str) -> float:
        nonlocal all_finite
        found = float(written)
        all_finite = all_finite and math.isfinite(found)
        return found

    value = json.loads(text, parse_constant=number, parse_float=number)
    if isinstance(value, dict):
        for name, child in value.items():
            _check_depth(name, child)
    else:
        _check_depth("", value)
    if not all_finite or _HALF.search(text):
        for field, leaf in _leaves("", value):
            _check_leaf(field, leaf)
    return value


def _check_depth(field: str, value: Any) -> None:
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        children = (one.values() if type(one) is dict else one for one in level)
        level = [child for group in children for child in group if type(child) in _CONTAINERS]
    if level:
        raise Unwritable(field, f"has over {MAX_DEPTH} levels of lists and objects; it must have at most {MAX_DEPTH}")


def _check_leaf(field: str, leaf: Any) -> None:
    if isinstance(leaf, float) and not math.isfinite(leaf):
        raise Unwritable(field, f"is {leaf}; it must be a finite number")
    if isinstance(leaf, str):
        try:
            leaf.encode()
        except UnicodeEncodeError as error:
            half = leaf[error.start]
            raise Unwritable(field, f"has {half!a} at character {error.start}, which is half a character") from error


def _leaves(field: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys of objects and all values that have no parts, each with its path."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield field, key
            yield from _leaves(f"{field}.{key}" if field else key, child)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _leaves(f"{field}[{index}]", child)
    else:
        yield field, value
