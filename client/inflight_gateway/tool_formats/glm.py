"""GLM 4.5 to 5: <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from inflight_gateway.pieces import Arguments, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.called_name import read_name
from inflight_gateway.tool_formats.keyed_values import KeyedValues
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"

_INSTRUCTIONS = """# Tools

You may call these functions:

<tools>
{tools}
</tools>

Write each call in this way:

{example}"""
_EXAMPLE = WrittenCall("NAME", {"KEY": "VALUE"})


class GLM(ToolFormat):
    """See the module. Texts stand there as they are, and other values as JSON; the schema says which is which."""

    name = "glm"
    markers = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
    triggers = (_OPEN,)
    separator = "\n"
    arguments: ClassVar[KeyedValues] = KeyedValues("GLM", (_KEY, _KEY_END), (_VALUE, _VALUE_END))

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`. Raises Unenforceable for a schema of text that is more than a choice of texts."""
        arguments = self.arguments.tag(tool) if enforced or tool.strict else self.arguments.any_tag
        return tag(f"{_OPEN}{tool.name}{self.separator}", arguments, _CLOSE)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        while True:
            space, marker = yield from text_until(source, (_OPEN,), emit)
            if marker is None:
                return
            found = yield from read_name(source, (_KEY, _CLOSE))
            if found is None:
                emit(Text(space + _OPEN))
            else:
                name, end = found
                source.put_back(end)
                closing = yield from self.arguments.read(source, emit, name, tools)
                if (yield from source.accept(_CLOSE)):
                    emit(Arguments(closing))
                yield from source.skip_space()

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        shown = json_text.lines_of(tool.shown() for tool in tools)
        return _INSTRUCTIONS.format(tools=shown, example=self.written([_EXAMPLE]))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        written = (f"{_OPEN}{call.name}{self.separator}{self.arguments.written(call)}{_CLOSE}" for call in calls)
        return self.separator.join(written)


class GLM47(GLM):
    """The calls of GLM 4.7 and later: the same without line breaks. Answers are read alike."""

    name = "glm-4.7"
    separator = ""
    arguments = KeyedValues("GLM", (_KEY, _KEY_END), (_VALUE, _VALUE_END), between="", after="")
