"""InternLM 2 to 3, Intern-S1: <|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>."""

from collections.abc import Mapping, Sequence

from inflight_gateway.pieces import Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.json_call import read_calls
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat

_OPEN, _PLUGIN, _CLOSE = "<|action_start|>", "<|plugin|>", "<|action_end|>"

_INSTRUCTIONS = """You can call these functions:

[{tools}]

To call one of them, write

{example}"""


class InternLM(ToolFormat):
    """See the module. The models know results of calls by a role of their own, also where their templates know none."""

    name = "internlm"
    markers = (_OPEN, _PLUGIN, _CLOSE)
    triggers = (_OPEN,)
    result_role = "environment"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        beginning = f'{_OPEN}{_PLUGIN}\n{{"name": "{tool.name}", "parameters": '
        return tag(beginning, tool.arguments(enforced=enforced), f"}}{_CLOSE}")

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. Intern-S1 writes a space between the two markers."""
        called = False
        while True:
            space, marker = yield from text_until(source, (_OPEN, _CLOSE), emit)
            if marker is None:
                return
            if marker == _CLOSE and called:
                yield from source.skip_space()
                called = False
                continue
            opening = space + marker
            if marker == _OPEN:
                opening += yield from source.space()
                if (yield from source.accept(_PLUGIN)):
                    called = yield from read_calls(source, emit, opening + _PLUGIN)
                    continue
            emit(Text(opening))

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        shown = ", ".join(json_text.text_of(tool.shown()["function"]) for tool in tools)
        example = f'{_OPEN}{_PLUGIN}\n{{"name": "...", "parameters": {{}}}}{_CLOSE}'
        return _INSTRUCTIONS.format(tools=shown, example=example)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        written = (json_text.text_of(call.as_object("parameters")) for call in calls)
        return "".join(f"{_OPEN}{_PLUGIN}\n{one}{_CLOSE}" for one in written)
