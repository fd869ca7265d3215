"""Apertus: <|tools_prefix|>[{"name": {...}}, ...]<|tools_suffix|>."""

from collections.abc import Sequence

from inflight_gateway.pieces import Arguments, Call
from inflight_gateway.reader import Emit
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_reader, json_text
from inflight_gateway.tool_formats.json_call import read_arguments
from inflight_gateway.tool_formats.marked_list import MarkedList
from inflight_gateway.tool_formats.tool import Tool, WrittenCall

_OPEN, _CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"

_INSTRUCTIONS = """Tool Capabilities:
{tools}

To call tools, write {open}, a JSON list of calls such as {{"NAME": ARGUMENTS}}, and {close}."""


class Apertus(MarkedList):
    """See the module."""

    name = "apertus"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN,)
    opening, closing = f"{_OPEN}[", f"]{_CLOSE}"

    @property
    def ends_thoughts(self) -> tuple[str, ...]:
        """See `ToolFormat`. The chat templates end no thought before a call."""
        return (_OPEN,)

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return tag(f'{{"{tool.name}": ', tool.arguments(enforced=enforced), "}")

    def read_one(self, source: Source, emit: Emit) -> Reading[str | None]:
        """See `MarkedList`. The key of the object is the name."""
        source.keep()
        name = None
        if (yield from source.accept("{")) and (yield from source.skip_space()) == '"':
            name = yield from json_reader.string(source)
            yield from source.skip_space()
        if not name or not (yield from source.accept(":")):
            return source.kept()
        yield from source.skip_space()
        source.kept()
        emit(Call(name))
        if (yield from read_arguments(source, lambda text: emit(Arguments(text)))):
            yield from source.skip_space()
            yield from source.accept("}")
        return None

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(
            open=_OPEN, close=_CLOSE, tools=json_text.lines_of(tool.shown()["function"] for tool in tools)
        )

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return f"{_OPEN}{json_text.text_of([{call.name: call.arguments} for call in calls])}{_CLOSE}"
