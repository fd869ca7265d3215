"""Qwen 3 Coder: <tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from inflight_gateway.pieces import Arguments, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import ANY_TEXT, Tag, tag, text_with
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.called_name import read_name
from inflight_gateway.tool_formats.keyed_values import KeyedValues
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat

_FUNCTION, _END = "<function=", "</function>"
_KEY, _VALUE = ("<parameter=", ">"), ("", "</parameter>")

_INSTRUCTIONS = """# Tools

You have access to the following functions:

<tools>
{tools}
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

{example}"""
_EXAMPLE = WrittenCall(
    "example_function_name",
    {
        "example_parameter_1": "value_1",
        "example_parameter_2": "This is the value for the second parameter\nthat can span\nmultiple lines",
    },
)


class Qwen3Coder(ToolFormat):
    """See the module. Texts stand there as they are, and other values as JSON; the schema says which is which."""

    name = "qwen3-coder"
    opening: ClassVar[str] = "<tool_call>"
    closing: ClassVar[str] = "</tool_call>"
    arguments: ClassVar[KeyedValues] = KeyedValues("Qwen 3 Coder", _KEY, _VALUE)
    markers = (opening, closing)
    triggers = (opening, _FUNCTION)
    separator = "\n"

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`. Raises Unenforceable for a schema of text that is more than a choice of texts."""
        content = self.arguments.tag(tool) if enforced or tool.strict else ANY_TEXT
        return tag(f"{self.opening}\n{_FUNCTION}{tool.name}>\n", content, f"{_END}\n{self.closing}")

    def text_and_calls(self, tools: Sequence[Tool], *, several: bool) -> Tag:
        """See `ToolFormat`. What is read without the tag around a function is enforced without it, too."""
        tags = [self.tag(tool, enforced=False) for tool in tools]
        bare = [tag(one["begin"].removeprefix(f"{self.opening}\n"), one["content"], _END) for one in tags]
        return text_with(self.triggers, [*tags, *bare], several=several)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. The tag around a function may be missing: models forget it."""
        called = False
        while True:
            space, marker = yield from text_until(source, (self.opening, self.closing, _FUNCTION), emit)
            if marker is None:
                return
            if marker == self.closing and called:
                yield from source.skip_space()
                called = False
                continue
            opening = space + marker
            if marker == self.opening:
                opening += yield from source.space()
                if (yield from source.accept(_FUNCTION)):
                    marker = _FUNCTION
                    opening += _FUNCTION
            if marker == _FUNCTION and (found := (yield from read_name(source, (">",), in_line=True))) is not None:
                closing = yield from self.arguments.read(source, emit, found[0], tools)
                # Models forget one of the ends.
                if (yield from source.accept(_END)) or (yield from source.accept(self.closing)):
                    emit(Arguments(closing))
                yield from source.skip_space()
                called = True
            else:
                emit(Text(opening))

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        example = self.written([_EXAMPLE])
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools), example=example)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return "\n".join(
            f"{self.opening}\n{_FUNCTION}{call.name}>\n{self.arguments.written(call)}{_END}\n{self.closing}"
            for call in calls
        )


class SeedOSS(Qwen3Coder):
    """The same with other tags around a function, and each value in the line of its key."""

    name = "seed-oss"
    opening, closing = "<seed:tool_call>", "</seed:tool_call>"
    arguments = KeyedValues("Seed-OSS", _KEY, _VALUE, between="")
    markers = (opening, closing)
    triggers = (opening, _FUNCTION)
