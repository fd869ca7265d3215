"""Llama 3: {"name": ..., "parameters": {...}}, with or without <|python_tag|> before it."""

from collections.abc import Mapping, Sequence

from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_reader, json_text
from inflight_gateway.tool_formats.json_call import read_call
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat

_PYTHON = "<|python_tag|>"
_BEGINNING = '{"name": "'

_INSTRUCTIONS = """Given the following functions, please respond with a JSON for a function call with its proper \
arguments that best answers the given prompt.

Respond in the format {{"name": function name, "parameters": dictionary of argument name and its value}}. \
Do not use variables.

{tools}"""


class Llama3(ToolFormat):
    """See the module.

    Nothing encloses a call, so an object is one only where the answer begins with it, or where it is written exactly as
    a structural tag makes models write it; and only if it names a tool of the request.
    """

    name = "llama3"
    markers = (_PYTHON,)
    triggers = (_BEGINNING,)
    separator = "; "

    def __init__(self, *, exact: bool = False) -> None:
        """`exact`: only what structural tags enforce is read as calls, not what is free text for them."""
        self._exact = exact

    def of_enforced_answers(self) -> ToolFormat:
        """See `ToolFormat`."""
        return Llama3(exact=True)

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return tag(f'{_BEGINNING}{tool.name}", "parameters": ', tool.arguments(enforced=enforced), "}")

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        space = ""
        marker: str | None = _PYTHON  # The beginning of the answer is read as what follows this marker.
        while marker is not None:
            if marker == _BEGINNING:
                source.put_back(marker)
                if (yield from _read_exact_call(source, emit, tools, space)) and not self._exact:
                    yield from _read_calls(source, emit, tools)
            elif not self._exact:
                space += yield from source.space()
                if (yield from source.peek()) == "{":
                    yield from _read_calls(source, emit, tools, space)
                else:
                    emit(Text(space))
            space, marker = yield from text_until(source, (_PYTHON, _BEGINNING), emit)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return "; ".join(json_text.text_of(call.as_object("parameters")) for call in calls)


def _read_calls(source: Source, emit: Emit, tools: Mapping[str, Tool], space: str = "") -> Reading[None]:
    """Read objects: calls and the separators between them. An object that is no call is text.

    `space`: what stands before the first object, if that is text.
    """
    is_next = True
    while is_next:
        if (text := (yield from read_call(source, emit, tools))) is not None:
            emit(Text(space + text))
            return
        space = ""
        is_next = yield from _object_follows(source)


def _read_exact_call(source: Source, emit: Emit, tools: Mapping[str, Tool], space: str) -> Reading[bool]:
    """Read a call within text, just as a structural tag makes it. Return whether another one may follow.

    Everything else is text, also the white space before it.
    """
    for name in tools:
        if (yield from source.accept(f'{_BEGINNING}{name}", "parameters": ')):
            emit(Call(name))
            yield from json_reader.value(source, lambda text: emit(Arguments(text)))
            yield from source.accept("}")
            return (yield from _object_follows(source))
    emit(Text(space + source.take(1)))
    return False


def _object_follows(source: Source) -> Reading[bool]:
    """Read what stands between calls, and return whether another one may follow."""
    if (yield from source.skip_space()) == ";":
        source.take(1)
    return (yield from source.skip_space()) == "{"
