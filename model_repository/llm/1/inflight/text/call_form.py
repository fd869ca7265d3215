"""Gives calls of tools to a chat template in the form in which it writes them."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

_Message = dict[str, Any]
Render = Callable[[list[_Message]], str]
"""Renders messages with a template. It may raise any exception."""

# With an id as the templates of Mistral want it.
_PROBE = "probe"
_ARGUMENTS = {"a": _PROBE}
_PROBES: tuple[_Message, ...] = (
    {"role": "user", "content": "x"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "000000000", "type": "function", "function": {"name": "f", "arguments": _ARGUMENTS}}],
    },
)
# What a message of calls alone may have for a content. transformers takes null out of messages.
_CONTENTS: tuple[Mapping[str, Any], ...] = ({}, {"content": ""})


def calls_in_form(messages: Sequence[_Message], render: Render) -> list[_Message]:
    """Return messages as they are if the template writes calls whose arguments are objects, in messages of calls alone.

    Those of DeepSeek join texts. For them, the arguments must be text, and there must be a content. Other templates
    print the arguments as they are. There an object would be in Python's form, so these get text, too.
    """
    if not any(message.get("tool_calls") for message in messages):
        return list(messages)
    for are_texts, content in product((False, True), _CONTENTS):
        written = _written(render, content, are_texts=are_texts)
        if _PROBE in written:
            are_texts = are_texts or _prints(render, content, written)
            return _in_form(messages, content, are_texts=are_texts)
    return list(messages)


def _written(render: Render, content: Mapping[str, Any], *, are_texts: bool) -> str:
    """Return how a template writes a call; "" if it refuses the call."""
    try:
        return render(_in_form(_PROBES, content, are_texts=are_texts))
    except Exception:  # noqa: BLE001 - templates are code of the model's authors
        return ""


def _prints(render: Render, content: Mapping[str, Any], written: str) -> bool:
    """Whether a template, which has written an object so, prints arguments as they are."""
    in_python, in_json = str(_ARGUMENTS), _as_json(_ARGUMENTS)
    printed = written.replace(in_python, in_json)
    return in_python in written and _written(render, content, are_texts=True) == printed


def _in_form(messages: Sequence[_Message], content: Mapping[str, Any], *, are_texts: bool) -> list[_Message]:
    return [
        {**content, **message, "tool_calls": [_call(call, is_text=are_texts) for call in calls]}
        if (calls := message.get("tool_calls"))
        else message
        for message in messages
    ]


def _call(call: dict[str, Any], *, is_text: bool) -> dict[str, Any]:
    function = call["function"]
    if not is_text or isinstance(function["arguments"], str):
        return call
    return {**call, "function": {**function, "arguments": _as_json(function["arguments"])}}


def _as_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
