"""Thoughts of earlier answers that a client sends back."""

import re
from collections.abc import Sequence
from typing import Any

_BEGIN, _END = "<think>", "</think>"
_SPLITS = re.compile(r"""split\(\s*['"]</think>['"]\s*\)""")
_OTHER_NAME = re.compile(r"\bmessage\.(thinking|thought|tool_plan)\b")


def with_thoughts_apart(messages: Sequence[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """Return messages with the thoughts of the assistant where the template looks for them.

    Templates such as Qwen 3's take them out of the text, and the line breaks around them. They could not find these
    beside the marks that keep the text of messages from becoming control tokens. Those of gpt-oss, Command and
    MiniCPM 3 have another name for `reasoning_content`.
    """
    if "reasoning_content" not in template:
        name = _OTHER_NAME.search(template)
        return list(messages) if name is None else [_renamed(message, name[1]) for message in messages]
    return [_apart(message) for message in messages] if _SPLITS.search(template) else list(messages)


def _renamed(message: dict[str, Any], new: str) -> dict[str, Any]:
    if "reasoning_content" not in message:
        return message
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    return {**rest, new: message["reasoning_content"]}


def _apart(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if message["role"] != "assistant" or "reasoning_content" in message:
        return message
    if not isinstance(content, str) or _END not in content:
        return message
    before, *_, after = content.split(_END)
    thoughts = before.rstrip("\n").split(_BEGIN)[-1].lstrip("\n")
    return {**message, "reasoning_content": thoughts, "content": after.lstrip("\n")}
