"""Gives messages to a chat template in the form in which it reads them: with texts, or with lists of parts."""

from collections.abc import Callable, Sequence
from typing import Any

_PROBE = "probe"


def reads_parts(render: Callable[[list[dict[str, Any]]], str]) -> bool:
    """Return whether a chat template leaves out the content of messages unless it is a list of parts.

    Those of models that also read images do. They would loop over the characters of a text, and write nothing.

    Args:
        render: renders messages with the template. It may raise any exception.
    """
    message = {"role": "user", "content": _PROBE}
    return not _shows(render, message) and _shows(render, with_parts([message])[0])


def with_parts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose contents are lists of one part, as OpenAI has them."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def _shows(render: Callable[[list[dict[str, Any]]], str], message: dict[str, Any]) -> bool:
    try:
        return _PROBE in render([message])
    except Exception:  # noqa: BLE001 - templates are code of the model's authors
        return False
