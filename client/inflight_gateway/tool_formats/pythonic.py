"""Llama 4, and some tuned Llama 3: a list of calls with nothing around it, [name(key="text", other=3), other()]."""

import re
from collections.abc import Container, Mapping, Sequence

from inflight_gateway.pieces import Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source, drop
from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_text, python_values
from inflight_gateway.tool_formats.bare_list import BareList
from inflight_gateway.tool_formats.python_calls import OF_PYTHON, call_tag, read_arguments, written_call
from inflight_gateway.tool_formats.tool import Tool, WrittenCall

# Control tokens of Llama 3 and Llama 4, which may stand around the list.
_MARKERS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
_NAME = re.compile(r"[\w.-]+")  # Of a tool, or of a parameter.

_INSTRUCTIONS = """You may call functions. If you do, answer with a list of calls in Python and nothing else, such as \
[name(key="text", other=3), other()]. Do not use variables. These are the functions:

{tools}"""


class Pythonic(BareList):
    """See the module.

    What models write freely may lack brackets at the beginning of an answer, or have other white space than usual.
    """

    name = "pythonic"
    markers = _MARKERS

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, OF_PYTHON, enforced=enforced)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        space: str = ""
        marker: str | None = _MARKERS[0]  # The beginning of the answer is read as what follows a marker.
        while marker is not None:
            if marker == "[":
                yield from self._read_list(source, emit, tools, space)
            else:
                space += yield from source.space()
                if (yield from source.accept("[")):
                    yield from self._read_list(source, emit, tools, space)
                elif self.exact:
                    emit(Text(space))
                else:
                    yield from self._read_calls(source, emit, tools, space)
            space, marker = yield from text_until(source, (*_MARKERS, "["), emit)

    def _read_list(self, source: Source, emit: Emit, tools: Container[str], space: str) -> Reading[None]:
        """Read what follows a bracket. `space`: what stands before it."""
        inside = "" if self.exact else (yield from source.space())
        yield from self._read_calls(source, emit, tools, f"{space}[{inside}")

    def _read_calls(self, source: Source, emit: Emit, tools: Container[str], unread: str) -> Reading[None]:
        """Read calls, what stands between them, and the bracket after them. If there is no call, `unread` is text."""
        while True:
            name, read = yield from _read_beginning(source, tools)
            if name is None:
                emit(Text(unread + read))
                return
            emit(Call(name))
            if not (yield from read_arguments(source, emit)):
                if (yield from source.until(("]", "["), drop)) == "[":
                    source.put_back("[")
                break
            separator = yield from self.read_separator(source)
            if separator is None:
                break
            unread = separator
        yield from source.skip_space()

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return f"[{', '.join(written_call(call, python_values.written) for call in calls)}]"


def _read_beginning(source: Source, tools: Container[str]) -> Reading[tuple[str | None, str]]:
    """Read the name of a tool and the bracket after it. If no call begins so, return None and what has been read."""
    name = ""
    yield from source.peek()
    while part := source.run(_NAME):
        name += part
        yield from source.peek()
    if name not in tools or not (yield from source.accept("(")):
        return None, name
    source.keep()
    is_call = (yield from source.skip_space()) == ")"
    if not is_call:
        while source.run(_NAME):
            yield from source.peek()
        is_call = (yield from source.skip_space()) == "="
    read = source.kept()
    if not is_call:
        return None, f"{name}({read}"
    source.put_back(read)
    return name, ""
