"""Nemotron Nano: <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>."""

from collections.abc import Sequence

from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.json_call import call_tag
from inflight_gateway.tool_formats.marked_list import MarkedList
from inflight_gateway.tool_formats.tool import Tool, WrittenCall

_OPEN, _CLOSE = "<TOOLCALL>", "</TOOLCALL>"

_INSTRUCTIONS = """You can use these tools:

{tools}

To call some of them, write {open}, a JSON list of calls such as {{"name": "...", "arguments": {{}}}}, and {close}."""


class Nemotron(MarkedList):
    """See the module."""

    name = "nemotron"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN,)
    opening, closing = f"{_OPEN}[", f"]{_CLOSE}"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, enforced=enforced)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        shown = json_text.lines_of(tool.shown()["function"] for tool in tools)
        return _INSTRUCTIONS.format(open=_OPEN, close=_CLOSE, tools=shown)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return f"{_OPEN}{json_text.text_of([call.as_object() for call in calls])}{_CLOSE}"
