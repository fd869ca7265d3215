"""Phi-4-mini: <|tool_call|>[{"name": ..., "arguments": {...}}, ...]<|/tool_call|>, or functools[{...}, ...]."""

from collections.abc import Mapping, Sequence

from inflight_gateway.pieces import Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.json_call import call_tag, read_calls
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat

_OPEN, _CLOSE = "<|tool_call|>", "<|/tool_call|>"
_FUNCTOOLS = "functools["

_INSTRUCTIONS = """You are a helpful assistant with some tools. To call tools, write one JSON list of calls, such as \
{example}. These are the tools:

{tools}"""


class Phi4Mini(ListFormat):
    """The calls of the model's own chat template, between control tokens. Answers are read in either way of writing."""

    name = "phi4-mini"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN, _FUNCTOOLS)
    opening, closing = f"{_OPEN}[", f"]{_CLOSE}"
    also_read = ((_FUNCTOOLS, "]"),)
    result_role = "tool"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, enforced=enforced)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        called = False
        while True:
            space, marker = yield from text_until(source, (_OPEN, _CLOSE, _FUNCTOOLS), emit)
            if marker is None:
                return
            if marker == _CLOSE and called:
                yield from source.skip_space()
                called = False
            elif marker == _CLOSE:
                emit(Text(space + _CLOSE))
            else:
                opening = space + marker
                if marker == _FUNCTOOLS:
                    source.put_back("[")
                    opening = opening.removesuffix("[")
                called = yield from read_calls(source, emit, opening)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        example = f'{self.opening}{{"name": "...", "arguments": {{}}}}, ...{self.closing}'
        return _INSTRUCTIONS.format(example=example, tools=json_text.lines_of(tool.shown() for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        written = (json_text.text_of(call.as_object()) for call in calls)
        return f"{self.opening}{self.separator.join(written)}{self.closing}"


class Functools(Phi4Mini):
    """The calls of templates that ask for a word in place of the control tokens."""

    name = "functools"
    opening, closing = _FUNCTOOLS, "]"
    also_read = ((Phi4Mini.opening, Phi4Mini.closing),)
