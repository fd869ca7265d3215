"""MiniCPM 3: <|tool_call_start|>, a block of Python with a call in each line, <|tool_call_end|>."""

from collections.abc import Mapping, Sequence

from inflight_gateway.reader import Emit
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.python_calls import OF_JSON, call_tag, read_between, written_call
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat

_OPEN, _CLOSE, _BLOCK = "<|tool_call_start|>", "<|tool_call_end|>", "```python"

_INSTRUCTIONS = """# Functions

You can invoke these functions:

{tools}

To do so, write

{example}"""


class MiniCPM3(ListFormat):
    """See the module. The calls look like Python, but the chat template writes their values as JSON."""

    name = "minicpm3"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN,)
    opening, closing = f"{_OPEN}\n{_BLOCK}\n", f"\n```\n{_CLOSE}"
    separator = "\n"
    result_role = "tool"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, OF_JSON, enforced=enforced)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        yield from read_between(source, emit, _OPEN, _CLOSE, before=_BLOCK)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        example = f'{self.opening}name(key="text", other=3){self.closing}'
        shown = json_text.lines_of(tool.shown()["function"] for tool in tools)
        return _INSTRUCTIONS.format(tools=shown, example=example)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        written = (written_call(call, json_text.text_of) for call in calls)
        return f"{self.opening}{self.separator.join(written)}{self.closing}"
