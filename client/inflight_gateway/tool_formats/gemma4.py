"""Gemma 4: <|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>."""

from collections.abc import Mapping, Sequence

from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source, drop
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.called_name import read_name
from inflight_gateway.tool_formats.gemma4_values import QUOTE, NotExpressible, read_value, tag_of, written_value
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat
from inflight_gateway.tool_formats.unenforceable import Unenforceable

_OPEN, _CLOSE, _CALL = "<|tool_call>", "<tool_call|>", "call:"

_INSTRUCTIONS = """# Tools

Call a function, if you need it, with {open}call:NAME{{key:value,...}}{close}. Texts stand between {quote}. These are
the functions:

{tools}"""


class Gemma4(ToolFormat):
    """See the module."""

    name = "gemma4"
    markers = (_OPEN, _CLOSE, QUOTE)
    triggers = (_OPEN,)

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`. Raises Unenforceable for a schema that bounds texts or the lengths of lists."""
        try:
            arguments = tag_of(tool.parameters, enforced=enforced or tool.strict)
        except NotExpressible as error:
            raise Unenforceable(tool.name, f"its schema {error}, which Gemma 4's format cannot express") from None
        return tag(f"{_OPEN}{_CALL}{tool.name}", arguments, _CLOSE)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        while True:
            space, marker = yield from text_until(source, (_OPEN,), emit)
            if marker is None:
                return
            is_call = yield from source.accept(_CALL)
            found = (yield from read_name(source, ("{",), (_CLOSE, _OPEN))) if is_call else None
            if found is None:
                emit(Text(space + _OPEN + (_CALL if is_call else "")))
                continue
            name, brace = found
            source.put_back(brace)
            emit(Call(name))
            complete = yield from read_value(source, lambda part: emit(Arguments(part)))
            yield from source.skip_space()
            is_closed = yield from source.accept(_CLOSE)
            border = None if is_closed or complete else (yield from source.until((_CLOSE, _OPEN), drop))
            if border == _OPEN:
                source.put_back(_OPEN)
            yield from source.skip_space()

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        shown = json_text.lines_of(tool.shown() for tool in tools)
        return _INSTRUCTIONS.format(open=_OPEN, close=_CLOSE, quote=QUOTE, tools=shown)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return "".join(f"{_OPEN}{_CALL}{call.name}{written_value(call.arguments)}{_CLOSE}" for call in calls)
