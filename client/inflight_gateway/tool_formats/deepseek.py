"""DeepSeek: calls between control tokens, with the arguments in a block of Markdown (V3, R1) or bare (V3.1)."""

from collections.abc import Sequence
from typing import ClassVar

from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.call_section import CallSection
from inflight_gateway.tool_formats.called_name import read_name
from inflight_gateway.tool_formats.tool import Tool, WrittenCall

# These bars and underscores are not those of ASCII.
_OPEN, _CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"  # noqa: RUF001
_FUNCTION = f"function{_SEPARATOR}"
_BLOCK, _LANGUAGE = "```", "json"

_INSTRUCTIONS = """## Tools

You can call these functions:

{tools}

To call one or more of them, write nothing after the calls, and write them in exactly this way:

{example}

NAME is the name of a function, and ARGUMENTS is a JSON object that matches its parameters."""


class _DeepSeek(CallSection):
    """Answers are read in either way of writing."""

    markers = (_OPEN, _CLOSE, _CALL, _CALL_END, _SEPARATOR)
    triggers = (_OPEN, _CALL)
    opening, closing = _OPEN, _CLOSE
    call_opening, call_closing = _CALL, _CALL_END
    header: ClassVar[str]
    end: ClassVar[str]

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return tag(self.header.format(name=tool.name), tool.arguments(enforced=enforced), self.end)

    def read_header(self, source: Source) -> Reading[tuple[str, str] | None]:
        """See `CallSection`."""
        if not (yield from source.accept(_FUNCTION)):
            found = yield from read_name(source, (_SEPARATOR,))
            return None if found is None else (found[0], "")
        if (yield from source.peek()) in ("{", "<"):  # A bare call of a function of this name.
            return "function", ""
        found = yield from read_name(source, ("\n", _BLOCK, "{"), in_line=True)
        if found is None:
            source.put_back(_FUNCTION)
            return None
        name, end = found
        if end == "{":
            source.put_back(end)
            return name, ""
        if end == "\n":
            yield from source.skip_space()
            yield from source.accept(_BLOCK)
        yield from source.accept(_LANGUAGE)
        return name, _BLOCK

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        example = f"{self.opening}{self._written_call('NAME', 'ARGUMENTS')}{self.closing}"
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools), example=example)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        written = [self._written_call(call.name, json_text.text_of(call.arguments)) for call in calls]
        return f"{self.opening}{self.separator.join(written)}{self.closing}"

    def _written_call(self, name: str, arguments: str) -> str:
        return f"{self.header.format(name=name)}{arguments}{self.end}"


class DeepSeekV3(_DeepSeek):
    """The calls of V3 and R1: <｜tool▁call▁begin｜>function<｜tool▁sep｜>name, and the arguments in a block of JSON."""  # noqa: RUF002

    name = "deepseek-v3"
    separator = "\n"
    header, end = f"{_CALL}{_FUNCTION}{{name}}\n{_BLOCK}{_LANGUAGE}\n", f"\n{_BLOCK}{_CALL_END}"


class DeepSeekV31(_DeepSeek):
    """The calls of V3.1 and V3.2-Exp: <｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>."""  # noqa: RUF002

    name = "deepseek-v3.1"
    header, end = f"{_CALL}{{name}}{_SEPARATOR}", _CALL_END
