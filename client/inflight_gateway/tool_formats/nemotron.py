"""Lists of calls, [{"name": ..., "arguments": {...}}, ...], between two words: those of Nemotron Nano and of Jamba."""

from collections.abc import Sequence

from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.json_call import call_tag
from inflight_gateway.tool_formats.marked_list import MarkedList
from inflight_gateway.tool_formats.tool import Tool, WrittenCall

_INSTRUCTIONS = """You can use these tools:

{tools}

To call some of them, write {open}, a JSON list of calls such as {{"name": "...", "arguments": {{}}}}, and {close}."""


class Nemotron(MarkedList):
    """<TOOLCALL>[...]</TOOLCALL>."""

    name = "nemotron"
    markers = ("<TOOLCALL>", "</TOOLCALL>")
    triggers = ("<TOOLCALL>",)
    opening, closing = "<TOOLCALL>[", "]</TOOLCALL>"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, enforced=enforced)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        begin, end = self.markers
        shown = json_text.lines_of(tool.shown()["function"] for tool in tools)
        return _INSTRUCTIONS.format(open=begin, close=end, tools=shown)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        begin, end = self.markers
        return f"{begin}{json_text.text_of([call.as_object() for call in calls])}{end}"


class Jamba(Nemotron):
    """<tool_calls>[...]</tool_calls>. Hunyuan A13B and Apriel write calls so, too, and MiniMax M1 without the list."""

    name = "jamba"
    markers = ("<tool_calls>", "</tool_calls>")
    triggers = ("<tool_calls>",)
    opening, closing = "<tool_calls>[", "]</tool_calls>"
