"""Checks values that came as JSON: what is deep or no Unicode is refused before anything walks through it."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from inflight.errors import InvalidRequest
from inflight.text.unicode import check_unicode

MAX_DEPTH = 64
"""How deep lists and objects may be in each other. Whatever walks through them recursively stays far from its limit."""


def check_tree(name: str, value: object) -> None:
    """Refuse a value that is nested too deep, or holds text that is no Unicode.

    Raises:
        InvalidRequest: the message names the field.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        for one in level:
            if isinstance(one, str):
                check_unicode(name, one)
            elif isinstance(one, dict):
                for key in one:
                    if not isinstance(key, str):
                        raise InvalidRequest(f"{name} has the key {key!r}; each key must be a text")
                    check_unicode(name, key)
        level = [child for one in level for child in _children(one)]
        if not level:
            return
    raise InvalidRequest(f"{name} has over {MAX_DEPTH} levels of lists and objects; it must have at most {MAX_DEPTH}")


def check_keys(name: str, value: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse an object that has other keys than these.

    Raises:
        InvalidRequest: the message names the field and the key.
    """
    for key in value:
        if key not in known:
            raise InvalidRequest(f"{name} has the key {key!r}; it must have only {', '.join(known)}")


def keys_and_texts(value: object) -> Iterator[tuple[str, bool]]:
    """Yield every text in a value that `check_tree` has accepted, and whether it is the key of an object."""
    if isinstance(value, str):
        yield value, False
    elif isinstance(value, dict):
        yield from ((key, True) for key in value)
    for child in _children(value):
        yield from keys_and_texts(child)


def _children(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
