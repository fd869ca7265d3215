"""Hermes, Qwen 2.5 and 3, SmolLM3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from collections.abc import Mapping, Sequence

from inflight_gateway.pieces import Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.json_call import read_calls
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class Hermes(ToolFormat):
    """See the module."""

    name = "hermes"
    markers = (OPEN, CLOSE)
    triggers = (OPEN,)
    separator = "\n"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        beginning = f'{OPEN}\n{{"name": "{tool.name}", "arguments": '
        return tag(beginning, tool.arguments(enforced=enforced), f"}}\n{CLOSE}")

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. One pair of tags may also hold a list of calls."""
        called = False
        while True:
            space, marker = yield from text_until(source, (OPEN, CLOSE), emit)
            if marker == OPEN:
                called = yield from read_calls(source, emit, space + OPEN)
            elif marker == CLOSE and not called:
                emit(Text(space + CLOSE))
            elif marker == CLOSE:
                yield from source.skip_space()
                called = False
            else:
                return

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return "\n".join(f"{OPEN}\n{json_text.text_of(call.as_object())}\n{CLOSE}" for call in calls)
