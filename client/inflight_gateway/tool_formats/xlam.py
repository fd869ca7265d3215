"""xLAM 2: a list of calls with nothing around it, [{"name": ..., "arguments": {...}}, ...]."""

from collections.abc import Iterable, Mapping, Sequence

from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import json_reader, json_text
from inflight_gateway.tool_formats.bare_list import BareList
from inflight_gateway.tool_formats.json_call import beginning_of, call_tag, read_call
from inflight_gateway.tool_formats.tool import Tool, WrittenCall

_INSTRUCTIONS = """You have some tools. If you use them, answer with one JSON list of calls and nothing else, such as \
[{{"name": "...", "arguments": {{}}}}, ...]. These are the tools:

{tools}"""


class XLAM(BareList):
    """See the module.

    At the beginning of an answer, calls may be written in any way. Further on, lists of JSON are more often what the
    user asked for, so a list is one of calls only if its first call is written as structural tags make models write it.
    """

    name = "xlam"
    markers = ()

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return call_tag(tool, enforced=enforced)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        space = yield from source.space()
        if (yield from source.accept("[")):
            yield from self._read_list(source, emit, tools, space, exact=self.exact)
        else:
            emit(Text(space))
        while True:
            space, marker = yield from text_until(source, ("[",), emit)
            if marker is None:
                return
            yield from self._read_list(source, emit, tools, space, exact=True)

    def _read_list(
        self, source: Source, emit: Emit, tools: Mapping[str, Tool], space: str, *, exact: bool
    ) -> Reading[None]:
        """Read what follows a bracket. `space`: what stands before it. `exact`: how the first call must be written."""
        inside = "" if exact else (yield from source.space())
        unread: str | None = f"{space}[{inside}"
        while unread is not None:
            read_one = _read_exact_call if exact else read_call
            if (text := (yield from read_one(source, emit, tools))) is not None:
                emit(Text(unread + text))
                return
            exact = self.exact
            unread = yield from self.read_separator(source)
        yield from source.skip_space()

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown()["function"] for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return json_text.text_of([call.as_object() for call in calls])


def _read_exact_call(source: Source, emit: Emit, names: Iterable[str]) -> Reading[str | None]:
    """Read a call that is written as its structural tag writes it. Otherwise as `read_call`."""
    for name in names:
        if (yield from source.accept(beginning_of(name))):
            emit(Call(name))
            yield from json_reader.value(source, lambda text: emit(Arguments(text)))
            yield from source.accept("}")
            return None
    return ""
