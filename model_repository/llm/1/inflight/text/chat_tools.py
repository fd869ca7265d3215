"""Checks the tools that a chat offers to the model, before the model's template sees them."""

import re
from typing import Any

from inflight.errors import InvalidRequest
from inflight.text.json_tree import check_keys, check_tree

MAX_TOOLS = 128
_MAX_NAME = 129
"""Anthropic's API has names of up to 128 characters, and OpenAI's has two of up to 64, which a dot joins."""
_NAME = re.compile(rf"[\w.-]{{1,{_MAX_NAME}}}", re.ASCII)
_KEYS = ("type", "function")
_KINDS = {
    "description": (str, "a text"),
    "parameters": (dict, "an object"),
    "strict": (bool, "true or false"),
    "return": (dict, "an object"),
}


def checked_tools(tools: object) -> list[dict[str, Any]]:
    """Return tools in the form in which templates expect them: OpenAI's, without keys whose value is null.

    Raises:
        InvalidRequest: a tool is malformed; the error names its place.
    """
    if not isinstance(tools, list) or not tools:
        raise InvalidRequest("tools must be a list of at least 1 tool")
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools has {len(tools)} tools; it must have at most {MAX_TOOLS}")
    check_tree("tools", tools)
    checked = [_checked(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in checked]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"tools has the name {name!r} {names.count(name)} times; each tool must have its own")
    return checked


def _checked(name: str, tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"{name} is {tool!r}; it must be an object with type and function")
    check_keys(name, tool, _KEYS)
    if tool.get("type") != "function":
        raise InvalidRequest(f"{name}.type is {tool.get('type')!r}; it must be 'function'")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{name}.function is {function!r}; it must be an object with a name")
    check_keys(f"{name}.function", function, ("name", *_KINDS))
    if not isinstance(function.get("name"), str) or not _NAME.fullmatch(function["name"]):
        raise InvalidRequest(
            f"{name}.function.name is {function.get('name')!r}; "
            f"it must be 1 to {_MAX_NAME} letters, digits, '_', '-' and '.'"
        )
    for key, (kind, what) in _KINDS.items():
        if not isinstance(function.get(key), kind | None):
            raise InvalidRequest(f"{name}.function.{key} is {function[key]!r}; it must be {what}")
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
