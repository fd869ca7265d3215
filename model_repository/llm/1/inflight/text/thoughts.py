"""Thoughts that a client sends back in the text of an answer."""

import re
from collections.abc import Sequence
from typing import Any

_BEGIN, _END = "<think>", "</think>"
_SPLITS = re.compile(r"""split\(\s*['"]</think>['"]\s*\)""")


def with_thoughts_apart(messages: Sequence[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """Return messages with the thoughts of the assistant in `reasoning_content`, if the template would put them there.

    Templates such as Qwen 3's take them out of the text, and the line breaks around them. They could not find these
    beside the marks that keep the text of messages from becoming control tokens.
    """
    if "reasoning_content" not in template or not _SPLITS.search(template):
        return list(messages)
    return [_apart(message) for message in messages]


def _apart(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if message["role"] != "assistant" or "reasoning_content" in message:
        return message
    if not isinstance(content, str) or _END not in content:
        return message
    before, *_, after = content.split(_END)
    thoughts = before.rstrip("\n").split(_BEGIN)[-1].lstrip("\n")
    return {**message, "reasoning_content": thoughts, "content": after.lstrip("\n")}
