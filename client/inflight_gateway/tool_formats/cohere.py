"""Command R7B and A: <|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}, ...]<|END_ACTION|>.

Answers without calls stand between tokens of their own.
"""

from collections.abc import Mapping, Sequence

from inflight_client import Message
from inflight_gateway.pieces import Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import ANY_TEXT, Tag, json_value, sequence, tag, text
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.json_call import read_calls
from inflight_gateway.tool_formats.own_ids import with_own_ids
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
# Newer models call an answer a text.
_ANSWERS = {"<|START_RESPONSE|>": "<|END_RESPONSE|>", "<|START_TEXT|>": "<|END_TEXT|>"}
_OF_ANSWERS = (*_ANSWERS.keys(), *_ANSWERS.values())

_INSTRUCTIONS = """# Available Tools

To call tools, write {open}, a JSON list of calls such as {{"tool_call_id": "0", "tool_name": "...", "parameters": \
{{}}}}, and {close}. Otherwise, answer the user. These are the tools:

{tools}"""


class Cohere(ListFormat):
    """See the module. The model numbers calls, but templates find the number of a result by the id of its call."""

    name = "cohere"
    markers = (_OPEN, _CLOSE, *_OF_ANSWERS)
    triggers = (_OPEN,)
    opening, closing = f"{_OPEN}[\n    ", f"\n]{_CLOSE}"
    separator = ",\n    "
    reads_every_answer = True

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        number = json_value({"type": "integer", "minimum": 0})
        named = text(f'", "tool_name": "{tool.name}", "parameters": ')
        return tag('{"tool_call_id": "', sequence(number, named, tool.arguments(enforced=enforced)), "}")

    def text_and_calls(self, tools: Sequence[Tool], *, several: bool) -> Tag:
        """See `ToolFormat`. Free text has no control tokens, so those around an answer are named."""
        found = super().text_and_calls(tools, several=several)
        answers = [tag(begin, ANY_TEXT, end) for begin, end in _ANSWERS.items()]
        return {**found, "triggers": [*_ANSWERS, *found["triggers"]], "tags": [*answers, *found["tags"]]}

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. Calls are text where there are no tools."""
        called = False
        while True:
            space, marker = yield from text_until(source, self.markers, emit)
            if marker is None:
                return
            if marker in _OF_ANSWERS:
                called = False
            elif marker == _OPEN and tools:
                called = yield from read_calls(source, emit, space + _OPEN)
            elif marker == _CLOSE and called:
                yield from source.skip_space()
                called = False
            else:
                emit(Text(space + marker))

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        shown = json_text.lines_of(tool.shown()["function"] for tool in tools)
        return _INSTRUCTIONS.format(open=_OPEN, close=_CLOSE, tools=shown)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        written = (
            json_text.text_of({"tool_call_id": str(number), "tool_name": call.name, "parameters": call.arguments})
            for number, call in enumerate(calls)
        )
        return f"{self.opening}{self.separator.join(written)}{self.closing}"

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """See `ToolFormat`."""
        return with_own_ids(messages)
