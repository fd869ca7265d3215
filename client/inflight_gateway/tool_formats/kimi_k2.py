"""Kimi K2: <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>, in a section."""

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from inflight_client import Message
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag, regex, sequence, tag, text
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.call_section import CallSection
from inflight_gateway.tool_formats.called_name import read_name
from inflight_gateway.tool_formats.own_ids import with_own_ids
from inflight_gateway.tool_formats.tool import Tool, WrittenCall

_OPEN, _CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END, _ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
_FUNCTIONS = "functions."
# The name stands in the id of a call, with the number of the call in the conversation.
_ID = re.compile(r"(?:functions\.)?([\w.-]+?)(?::\d+)?", re.ASCII)
_NUMBER = regex("[0-9]{1,4}")

_INSTRUCTIONS = """# Tools

You can call these functions:

{tools}

To call one or more of them, end your answer with the calls, and write them in exactly this way:

{example}

NAME is the name of a function, ARGUMENTS is a JSON object that matches its parameters, and the number counts all calls
of the conversation."""


class KimiK2(CallSection):
    """See the module."""

    name = "kimi-k2"
    markers = (_OPEN, _CLOSE, _CALL, _CALL_END, _ARGUMENTS)
    triggers = (_OPEN, _CALL)
    opening, closing = _OPEN, _CLOSE
    call_opening, call_closing = _CALL, _CALL_END

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        content = sequence(_NUMBER, text(_ARGUMENTS), tool.arguments(enforced=enforced))
        return tag(f"{_CALL}{_FUNCTIONS}{tool.name}:", content, _CALL_END)

    def read_header(self, source: Source) -> Reading[tuple[str, str] | None]:
        """See `CallSection`."""
        found = yield from read_name(source, (_ARGUMENTS,), form=_ID)
        match = None if found is None else _ID.fullmatch(found[0])
        return None if match is None else (match[1], "")

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        example = f"{_OPEN}{_written('NAME', 0, 'ARGUMENTS')}{_CLOSE}"
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools), example=example)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        written = (_written(call.name, at, json_text.text_of(call.arguments)) for at, call in enumerate(calls))
        return f"{_OPEN}{''.join(written)}{_CLOSE}"

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """See `ToolFormat`. The templates write the id of a call, whatever it is, in the place of its name."""
        shown: list[Message] = []
        numbers, ids = count(), dict[str, str]()
        for message in with_own_ids(messages):
            if calls := message.get("tool_calls"):
                new = [_id(_name(call), next(numbers)) for call in calls]
                ids.update(zip((str(call["id"]) for call in calls), new, strict=True))
                message = {**message, "tool_calls": [{**call, "id": one} for call, one in zip(calls, new, strict=True)]}
            if (call_id := message.get("tool_call_id")) is not None:
                message = {**message, "tool_call_id": ids.get(call_id, call_id)}
            shown.append(message)
        return shown


def _name(call: Mapping[str, Any]) -> str:
    return str(call["function"]["name"])


def _id(name: str, number: int) -> str:
    return f"{_FUNCTIONS}{name}:{number}"


def _written(name: str, number: int, arguments: str) -> str:
    return f"{_CALL}{_id(name, number)}{_ARGUMENTS}{arguments}{_CALL_END}"
