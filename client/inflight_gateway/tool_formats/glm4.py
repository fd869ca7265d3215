"""GLM 4 before 4.5, GLM Z1: the name of a function in a line, and below it the arguments as JSON."""

from collections.abc import Mapping, Sequence

from inflight_gateway import structural_tags
from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import ANY_TEXT, Tag, either, tag
from inflight_gateway.tool_formats import json_reader, json_text
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat

_NEXT = "<|assistant|>"

_INSTRUCTIONS = """# Tools

{tools}

To call a tool, write its name in a line of its own, and below it a JSON object with the arguments."""


class GLM4(ToolFormat):
    """See the module. Nothing encloses a call. So only the name of a tool that the answer may call begins one."""

    name = "glm4"
    markers = (_NEXT,)
    triggers = ()
    separator = _NEXT
    result_role = "observation"

    def __init__(self, *, exact: bool = False) -> None:
        """`exact`: calls are only read at the beginning of an answer, where they are enforced."""
        self._exact = exact

    def of_enforced_answers(self) -> ToolFormat:
        """See `ToolFormat`."""
        return GLM4(exact=True)

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return tag(f"{tool.name}\n", tool.arguments(enforced=enforced), "")

    def text_and_calls(self, tools: Sequence[Tool], *, several: bool) -> Tag:
        """See `ToolFormat`. The models begin a text with a line break, and calls without one."""
        calls = self.calls(tools, several=several, enforced=False)
        return either(calls, tag("\n", ANY_TEXT, ""), structural_tags.text(""))

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        yield from self._read_calls(source, emit, tools)
        if self._exact:
            yield from source.rest(lambda text: emit(Text(text)))
            return
        space = ""
        while True:
            if (yield from source.peek()) != "\n":
                emit(Text(space))
                space = ""
            before, marker = yield from text_until(source, ("\n", _NEXT), emit)
            if marker is None:
                return
            space += before if marker == _NEXT else before + marker
            if (yield from self._read_calls(source, emit, tools)):
                space = ""

    def _read_calls(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[bool]:
        """Read calls where a line begins, and the white space after them. Return whether there are any."""
        called, begins = False, True
        while begins and (yield from self._read_call(source, emit, tools)):
            called = True
            space = yield from source.space()
            begins = (yield from source.accept(_NEXT)) or space.endswith("\n")
        return called

    def _read_call(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[bool]:
        for name in tools:
            if (yield from source.accept(f"{name}\n")):
                if (yield from source.peek()) != "{":
                    source.put_back(f"{name}\n")
                    return False
                emit(Call(name))
                yield from json_reader.value(source, lambda text: emit(Arguments(text)))
                return True
        return False

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`. No message may have the control token that separates calls."""
        return "\n".join(f"{call.name}\n{json_text.text_of(call.arguments)}" for call in calls)
