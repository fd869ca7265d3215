"""Functionary, and Llama 3.1 with such a template: <function=name>{...}</function>."""

from collections.abc import Mapping, Sequence

from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source, drop
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.called_name import read_name
from inflight_gateway.tool_formats.json_call import read_arguments
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat

_OPEN, _CLOSE = "<function=", "</function>"

_INSTRUCTIONS = """You can call these functions:

{tools}

To call one of them, reply with nothing but its name and its arguments, a JSON object, in this form:

<function=NAME>ARGUMENTS</function>"""


class Llama3Functions(ToolFormat):
    """See the module."""

    name = "llama3-functions"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN,)

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return tag(f"{_OPEN}{tool.name}>", tool.arguments(enforced=enforced), _CLOSE)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. The end of a call may be missing."""
        while True:
            space, marker = yield from text_until(source, (_OPEN,), emit)
            if marker is None:
                return
            found = yield from read_name(source, (">",), in_line=True)
            if found is None:
                emit(Text(space + _OPEN))
                continue
            emit(Call(found[0]))
            yield from _read_arguments(source, emit)
            yield from source.skip_space()

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return "".join(f"{_OPEN}{call.name}>{json_text.text_of(call.arguments)}{_CLOSE}" for call in calls)


def _read_arguments(source: Source, emit: Emit) -> Reading[None]:
    complete = False
    if (yield from source.skip_space()) in ("{", '"'):
        complete = yield from read_arguments(source, lambda text: emit(Arguments(text)))
        yield from source.skip_space()
    elif (yield from source.accept(_CLOSE)):
        emit(Arguments("{}"))
        return
    if (yield from source.accept(_CLOSE)) or complete:
        return
    if (yield from source.until((_CLOSE, _OPEN), drop)) == _OPEN:
        source.put_back(_OPEN)
