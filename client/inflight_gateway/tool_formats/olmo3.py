"""OLMo 3: <function_calls>name(key="text", other=3)</function_calls>, each further call on a line of its own."""

from collections.abc import Mapping, Sequence

from inflight_gateway.reader import Emit
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.python_calls import OF_JSON, call_tag, read_between, written_call
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat

_OPEN, _CLOSE = "<function_calls>", "</function_calls>"

_INSTRUCTIONS = """You may call functions. Write the calls between {open} and {close}, each on a line of its own, such \
as name(key="text", other=3). These are the functions:

<functions>{tools}</functions>"""


class OLMo3(ListFormat):
    """See the module. The calls look like Python, but their values are JSON, in the chat template as well."""

    name = "olmo3"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN,)
    opening, closing = _OPEN, _CLOSE
    separator = "\n"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, OF_JSON, enforced=enforced)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        yield from read_between(source, emit, _OPEN, _CLOSE)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        shown = json_text.text_of([tool.shown() for tool in tools])
        return _INSTRUCTIONS.format(tools=shown, open=_OPEN, close=_CLOSE)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return f"{_OPEN}{self.separator.join(written_call(call, json_text.text_of) for call in calls)}{_CLOSE}"
