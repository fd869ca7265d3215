"""Checks the messages of a chat before a model's template sees them."""

import json
import re
from typing import Any

from inflight.errors import InvalidRequest
from inflight.text.json_tree import check_keys, check_tree
from inflight.text.unicode import check_unicode

_TEXTS = ("role", "content", "name", "reasoning_content", "tool_call_id")
_KEYS = (*_TEXTS, "tool_calls")
"""The keys of a message. Templates may ignore all but the first two."""

MAX_MESSAGES = 4096
MAX_PARTS = 1024
"""Of one content."""
MAX_TOOL_CALLS = 128
"""In one message."""

# Templates write roles into control tokens, such as `<|user|>`, so a role must not bring markup of its own.
_ROLE = re.compile(r"[\w-]{1,64}")
IMAGE = {"type": "image"}
"""The part of a content that stands for an image."""
_CALL_KEYS = ("id", "type", "function")
_FUNCTION_KEYS = ("name", "arguments")


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Return messages in the form in which templates expect them.

    A message has the texts `role` and `content`; `name`, `reasoning_content`, `tool_call_id` and `tool_calls` are
    optional. A content may also be a list of parts: texts, and the places of images. Where the assistant has
    `tool_calls`, `content` may be null or absent. The arguments of a call may be an object, or text that holds one, as
    OpenAI has it; the result has the object.

    Raises:
        InvalidRequest: a message is malformed; the error names its place.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a list of at least 1 message")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages has {len(messages)} messages; it must have at most {MAX_MESSAGES}")
    return [_checked(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _checked(name: str, message: object) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequest(f"{name} is {message!r}; it must be an object with role and content")
    check_keys(name, message, _KEYS)
    calls = message.get("tool_calls")
    if "tool_calls" in message:
        message = {**message, "tool_calls": _checked_calls(f"{name}.tool_calls", calls)}
    if calls and message.get("content") is None and message.get("role") == "assistant":
        message.pop("content", None)
    elif "content" not in message:
        raise InvalidRequest(f"{name}.content is None; it must be a text")
    if isinstance(message.get("content"), list):
        message = {**message, "content": _checked_parts(f"{name}.content", message["content"])}
    for key in ("role", *message):
        if key in _TEXTS and not (key == "content" and isinstance(message[key], list)):
            _check_text(f"{name}.{key}", message.get(key))
    if not _ROLE.fullmatch(message["role"]):
        raise InvalidRequest(f"{name}.role is {message['role']!r}; it must be 1 to 64 letters, digits, '_' and '-'")
    return message


def _checked_parts(name: str, parts: list[object]) -> str | list[dict[str, str]]:
    """Return the parts of a content, or their text if there is no image among them."""
    if not parts:
        raise InvalidRequest(f"{name} is empty; it must have at least 1 part")
    if len(parts) > MAX_PARTS:
        raise InvalidRequest(f"{name} has {len(parts)} parts; it must have at most {MAX_PARTS}")
    checked: list[dict[str, str]] = []
    for index, part in enumerate(parts):
        where = f"{name}[{index}]"
        if not isinstance(part, dict) or part.get("type") not in ("text", "image"):
            raise InvalidRequest(f"{where} is {part!r}; it must be an object of the type text or image")
        if part["type"] == "image":
            check_keys(where, part, IMAGE)
            checked.append(dict(IMAGE))
            continue
        check_keys(where, part, ("type", "text"))
        _check_text(f"{where}.text", part.get("text"))
        checked.append({"type": "text", "text": part["text"]})
    if IMAGE in checked:
        return checked
    return "".join(part["text"] for part in checked)


def _checked_calls(name: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{name} is {calls!r}; it must be a list of tool calls")
    if len(calls) > MAX_TOOL_CALLS:
        raise InvalidRequest(f"{name} has {len(calls)} tool calls; it must have at most {MAX_TOOL_CALLS}")
    return [_checked_call(f"{name}[{index}]", call) for index, call in enumerate(calls)]


def _checked_call(name: str, call: object) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise InvalidRequest(f"{name} is {call!r}; it must be an object with id, type and function")
    check_keys(name, call, _CALL_KEYS)
    if "id" in call:
        _check_text(f"{name}.id", call["id"])
    if call.get("type", "function") != "function":
        raise InvalidRequest(f"{name}.type is {call['type']!r}; it must be 'function'")
    function = call.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{name}.function is {function!r}; it must be an object with name and arguments")
    check_keys(f"{name}.function", function, _FUNCTION_KEYS)
    _check_text(f"{name}.function.name", function.get("name"))
    arguments = _arguments(f"{name}.function.arguments", function.get("arguments"))
    return {**call, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _arguments(name: str, arguments: object) -> object:
    if isinstance(arguments, str):
        check_unicode(name, arguments)
        try:
            decoded = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments  # As a model wrote it that was cut off. The template decides what to do with it.
        arguments = decoded if isinstance(decoded, dict) else arguments
    elif not isinstance(arguments, dict):
        raise InvalidRequest(f"{name} is {arguments!r}; it must be an object, or text that holds one")
    check_tree(name, arguments)
    return arguments


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {value!r}; it must be a text")
    check_unicode(name, value)
