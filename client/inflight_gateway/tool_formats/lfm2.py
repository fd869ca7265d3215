"""LFM2: <|tool_call_start|>[name(key="text", other=3), other()]<|tool_call_end|>, as Python writes calls."""

from collections.abc import Mapping, Sequence

from inflight_gateway.reader import Emit
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_text, python_values
from inflight_gateway.tool_formats.python_calls import OF_PYTHON, call_tag, read_between, written_call
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"

_INSTRUCTIONS = """List of tools: {tools}

If you call tools, write a list of calls in Python between {open} and {close}, such as [name(key="text", other=3)]."""


class LFM2(ListFormat):
    """See the module. Its chat templates show tools and results, but only the newest ones write calls."""

    name = "lfm2"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN,)
    opening, closing = f"{_OPEN}[", f"]{_CLOSE}"
    result_role = "tool"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, OF_PYTHON, enforced=enforced)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        yield from read_between(source, emit, _OPEN, _CLOSE)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        shown = json_text.text_of([tool.shown()["function"] for tool in tools])
        return _INSTRUCTIONS.format(tools=shown, open=_OPEN, close=_CLOSE)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        written = (written_call(call, python_values.written) for call in calls)
        return f"{self.opening}{self.separator.join(written)}{self.closing}"
