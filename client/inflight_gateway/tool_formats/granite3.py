"""Granite 3: <|tool_call|>[{"name": ..., "arguments": {...}}, ...]."""

from collections.abc import Mapping, Sequence

from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.json_call import call_tag, read_calls
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat

_OPEN = "<|tool_call|>"
_SPELLED = "<tool_call>"

_INSTRUCTIONS = """You are a helpful assistant with access to the following tools. If a tool is required to answer the \
user's query, respond only with {open} followed by a JSON list of calls, such as [{{"name": "...", "arguments": {{}}}}].

{tools}"""


class Granite3(ListFormat):
    """See the module. Its chat templates show tools, but write no calls."""

    name = "granite3"
    markers = (_OPEN,)
    triggers = (_OPEN, _SPELLED)
    opening, closing = f"{_OPEN}[", "]"
    also_read = ((f"{_SPELLED}[", closing),)
    result_role = "tool_response"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, enforced=enforced)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. Granite 3.1 also writes the token as a text of its own."""
        while True:
            space, marker = yield from text_until(source, self.triggers, emit)
            if marker is None:
                return
            yield from read_calls(source, emit, space + marker)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(open=_OPEN, tools=json_text.lines_of(tool.shown() for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return f"{_OPEN}{json_text.text_of([call.as_object() for call in calls])}"
