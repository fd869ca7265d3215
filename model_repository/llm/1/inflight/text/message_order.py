"""Brings messages into an order that a chat template takes.

Coding agents give instructions to the model in the middle of a conversation, and send several messages of the user in a
row. Many templates take only one system message, at the beginning, or want user and assistant to alternate.
"""

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise, takewhile
from typing import Any

_Message = dict[str, Any]
Render = Callable[[list[_Message]], str]
"""Renders messages with a template. It may raise any exception."""

_SYSTEM, _USER = "system", "user"
_SEPARATOR = "\n\n"


def in_order(messages: Sequence[_Message], render: Render) -> list[_Message]:
    """Return messages as they are if the template takes their order. Otherwise:

    - system messages at the beginning become one;
    - later ones become messages of the user;
    - neighbouring messages of the user become one.

    No text is lost or moved.
    """
    ordered = list(messages)
    first = len(list(takewhile(_is_system, ordered)))
    if first > 1 and not _takes(render, [_SYSTEM, _SYSTEM, _USER]):
        ordered[:first] = [_joined(ordered[:first])]
        first = 1
    if any(map(_is_system, ordered[first:])) and not _takes(render, [_USER, _SYSTEM, "assistant", _USER]):
        ordered[first:] = [
            {**message, "role": _USER} if _is_system(message) else message for message in ordered[first:]
        ]
    roles = [message["role"] for message in ordered]
    if (_USER, _USER) in pairwise(roles) and not _takes(render, [_USER, _USER]):
        groups = [(role, list(group)) for role, group in groupby(ordered, lambda message: message["role"])]
        ordered = [each for role, group in groups for each in ([_joined(group)] if role == _USER else group)]
    return ordered


def _is_system(message: _Message) -> bool:
    return bool(message["role"] == _SYSTEM)


def _takes(render: Render, roles: Sequence[str]) -> bool:
    """Return whether the template renders messages of these roles, all of them and in their order."""
    marks = [f"probe-{number}-" for number in range(len(roles))]
    try:
        text = render([{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)])
    except Exception:  # noqa: BLE001 - templates are code of the model's authors
        return False
    places = [text.find(mark) for mark in marks]
    return places[0] >= 0 and places == sorted(places)


def _joined(messages: Sequence[_Message]) -> _Message:
    contents = [message["content"] for message in messages]
    if all(isinstance(content, str) for content in contents):
        return {**messages[0], "content": _SEPARATOR.join(contents)}
    parts: list[dict[str, str]] = []
    for content in contents:
        new = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if parts and parts[-1]["type"] == new[0]["type"] == "text":
            parts[-1] = {"type": "text", "text": parts[-1]["text"] + _SEPARATOR + new[0]["text"]}
            new = new[1:]
        parts += new
    return {**messages[0], "content": parts}
