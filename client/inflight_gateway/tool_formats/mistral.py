"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], and in newer models [TOOL_CALLS]name[ARGS]{...}."""

import hashlib
import re
from collections.abc import Mapping, Sequence

from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source, drop
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_reader, json_text
from inflight_gateway.tool_formats.json_call import call_tag, read_calls
from inflight_gateway.tool_formats.tool import NAME, Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat, ToolFormat

OPEN, ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID_FORM = re.compile("[a-zA-Z0-9]{9}")

_INSTRUCTIONS = """You are a helpful assistant that can call tools. If you call one or more tools, format them in a \
single JSON array of objects, where each object is a tool call: \
[TOOL_CALLS][{{"name": tool call name, "arguments": tool call arguments}}, additional tool calls]. If you call tools, \
do not attempt to interpret them or otherwise provide a response until you receive a tool call result.

[AVAILABLE_TOOLS]{tools}[/AVAILABLE_TOOLS]"""

_NEWER_INSTRUCTIONS = """You are a helpful assistant that can call tools. Write each call as \
[TOOL_CALLS]tool call name[ARGS]tool call arguments as JSON. If you call tools, do not attempt to interpret them or \
otherwise provide a response until you receive a tool call result.

[AVAILABLE_TOOLS]{tools}[/AVAILABLE_TOOLS]"""


class Mistral(ListFormat):
    """The calls of older models: one list of objects. Answers are read in either way of writing."""

    name = "mistral"
    markers = (OPEN, ARGUMENTS, _ID)
    triggers = (OPEN,)
    opening, closing = f"{OPEN}[", "]"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, enforced=enforced)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        while True:
            space, marker = yield from text_until(source, (OPEN,), emit)
            if marker is None:
                return
            opening = space + OPEN + (yield from source.space())
            if (yield from source.peek()) in ("[", "{"):
                yield from read_calls(source, emit, opening)
            else:
                yield from _read_named(source, emit, opening)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.text_of([tool.shown() for tool in tools]))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return f"{OPEN}{json_text.text_of([call.as_object() for call in calls])}"

    def shown_id(self, call_id: str) -> str:
        """See `ToolFormat`. These templates take nothing but nine letters and digits."""
        return call_id if _ID_FORM.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


class NewerMistral(ToolFormat):
    """The calls of newer models: the name and the arguments of each call stand behind tokens of their own."""

    name = "mistral-args"
    markers = Mistral.markers
    triggers = Mistral.triggers
    read = Mistral.read
    shown_id = Mistral.shown_id

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return tag(f"{OPEN}{tool.name}{ARGUMENTS}", tool.arguments(enforced=enforced), "")

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _NEWER_INSTRUCTIONS.format(tools=json_text.text_of([tool.shown() for tool in tools]))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return "".join(f"{OPEN}{call.name}{ARGUMENTS}{json_text.text_of(call.arguments)}" for call in calls)


def _read_named(source: Source, emit: Emit, opening: str) -> Reading[None]:
    """Read a name and its arguments, between which an id may stand, and the white space after them.

    If there is no name, `opening` is text, and nothing is read.
    """
    source.keep()
    written: list[str] = []
    # Not beyond the next call. Otherwise each call would be read up to the end of the answer.
    marker = yield from source.until((ARGUMENTS, _ID, "{", OPEN), written.append)
    if marker == _ID:
        marker = yield from source.until((ARGUMENTS, "{", OPEN), drop)
    read, name = source.kept(), "".join(written).strip()
    if marker in (None, OPEN) or not NAME.fullmatch(name):
        emit(Text(opening))
        source.put_back(read)
        return
    if marker == "{":
        source.put_back(marker)
    emit(Call(name))
    yield from source.skip_space()
    yield from json_reader.value(source, lambda text: emit(Arguments(text)))
    yield from source.skip_space()
