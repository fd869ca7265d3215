"""Formats of a section of calls such as <invoke name="..."><parameter name="...">...</parameter></invoke>."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.called_name import read_name
from inflight_gateway.tool_formats.json_call import read_arguments
from inflight_gateway.tool_formats.keyed_values import KeyedValues
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat

_INSTRUCTIONS = """# Tools

You can call these functions:

{tools}

To call one or more of them, end your answer with the calls, and write them in exactly this way:

{example}

Texts stand there as they are, and other values as JSON."""
_EXAMPLE = WrittenCall("NAME", {"KEY": "VALUE"})


class InvokeSection(ListFormat):
    """See the module."""

    separator = ""
    section: ClassVar[tuple[str, str]]
    """What begins and ends the section."""
    invoke: ClassVar[tuple[str, str]]
    """What stands before the name of a function, and what ends its call."""
    name_end: ClassVar[str] = '">'
    """What stands after the name."""
    arguments: ClassVar[KeyedValues]

    @property
    def ends_thoughts(self) -> tuple[str, ...]:
        """See `ToolFormat`. Models that think before these calls have been seen to forget the end of the thought."""
        return self.section[:1]

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`. Raises Unenforceable for a schema of text that is more than a choice of texts."""
        begin, end = self.invoke
        arguments = self.arguments.tag(tool) if enforced or tool.strict else self.arguments.any_tag
        return tag(f"{begin}{tool.name}{self.name_end}\n", arguments, f"{end}\n")

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. The ends may be missing: models forget them."""
        begin, end = self.section
        while True:
            space, marker = yield from text_until(source, (begin,), emit)
            if marker is None:
                return
            unread = space + begin + (yield from source.space())
            while (yield from source.accept(self.invoke[0])):
                found = yield from read_name(source, (self.name_end,), in_line=True)
                if found is None:
                    unread += self.invoke[0]
                    break
                unread = ""
                yield from self._read_arguments(source, emit, found[0], tools)
                yield from source.skip_space()
            emit(Text(unread))
            if not unread and (yield from source.accept(end)):
                yield from source.skip_space()

    def _read_arguments(self, source: Source, emit: Emit, name: str, tools: Mapping[str, Tool]) -> Reading[None]:
        """Read the arguments of a call and its end. Models have been seen to write them as JSON, too."""
        if (yield from source.skip_space()) == "{":
            emit(Call(name))
            yield from read_arguments(source, lambda text: emit(Arguments(text)))
            yield from source.skip_space()
            yield from source.accept(self.invoke[1])
            return
        closing = yield from self.arguments.read(source, emit, name, tools)
        if (yield from source.accept(self.invoke[1])) or (yield from source.accept(self.section[1])):
            emit(Arguments(closing))

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        shown = json_text.lines_of(tool.shown()["function"] for tool in tools)
        return _INSTRUCTIONS.format(tools=shown, example=self.written([_EXAMPLE]))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        begin, end = self.invoke
        written = (f"{begin}{call.name}{self.name_end}\n{self.arguments.written(call)}{end}\n" for call in calls)
        return f"{self.opening}{''.join(written)}{self.closing}"
