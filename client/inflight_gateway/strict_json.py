"""Reads JSON that can be written again: what is infinite, not Unicode, too deep or in too many parts is refused.

Python's parser takes all of this, and its writer fails on it later, in an answer or on the way to the server. Or it
holds up all other requests: four MiB of brackets take a second to read and check.
"""

import json
import math
import re
from typing import Any

MAX_DEPTH = 128
"""How deep lists and objects may be in each other. Whatever walks through them recursively stays far from its limit."""

MAX_CONTAINERS = 100_000
"""How many lists and objects there may be."""

_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
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
    _check_containers(text)
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
    if not all_finite or (_HALF.search(text) and not _is_unicode(value)):
        _refuse_first_fault(value)
    return value


def _check_containers(text: str) -> None:
    if _brackets(text) <= MAX_CONTAINERS:  # Texts in it may have more of them.
        return
    if (count := _brackets(_TEXT.sub("", text))) > MAX_CONTAINERS:
        raise Unwritable("", f"has {count} lists and objects; it must have at most {MAX_CONTAINERS}")


def _brackets(text: str) -> int:
    return text.count("[") + text.count("{")


def _check_depth(field: str, value: Any) -> None:
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        children = (one.values() if type(one) is dict else one for one in level)
        level = [child for group in children for child in group if type(child) in _CONTAINERS]
    if level:
        raise Unwritable(field, f"has over {MAX_DEPTH} levels of lists and objects; it must have at most {MAX_DEPTH}")


def _is_unicode(value: Any) -> bool:
    """Return whether all texts in a value are whole characters."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_first_fault(value: Any) -> None:
    """Raise `Unwritable` for the first text or number in a value that cannot be written, if there is one."""
    if (found := _first_fault(value)) is not None:
        path, what = found
        raise Unwritable(path.removeprefix(".") if isinstance(value, dict) else path, what)


def _first_fault(value: Any) -> tuple[str, str] | None:
    """Return the path of the first fault, and what is wrong there. That of a key is the path of its object.

    The path is written on the way back. Written on the way to each value, a long key would be copied for all of them.
    """
    if isinstance(value, dict):
        for key, child in value.items():
            if (what := _fault_of(key)) is not None:
                return "", what
            if (found := _first_fault(child)) is not None:
                return f".{key}{found[0]}", found[1]
    elif isinstance(value, list):
        for index, child in enumerate(value):
            if (found := _first_fault(child)) is not None:
                return f"[{index}]{found[0]}", found[1]
    elif (what := _fault_of(value)) is not None:
        return "", what
    return None


def _fault_of(leaf: Any) -> str | None:
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return f"is {leaf}; it must be a finite number"
    if isinstance(leaf, str):
        try:
            leaf.encode()
        except UnicodeEncodeError as error:
            half = leaf[error.start]
            return f"has {half!a} at character {error.start}, which is half a character"
    return None
