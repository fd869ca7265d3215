"""Formats in which markers enclose a section of calls, and others each call: a header and its arguments as JSON."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source, drop
from inflight_gateway.structural_tags import Tag, text_with
from inflight_gateway.tool_formats.json_call import read_arguments
from inflight_gateway.tool_formats.tool import Tool
from inflight_gateway.tool_formats.tool_format import ListFormat


class CallSection(ListFormat):
    """See the module."""

    separator = ""
    call_opening: ClassVar[str]
    call_closing: ClassVar[str]

    @property
    def ends_thoughts(self) -> tuple[str, ...]:
        """See `ToolFormat`. Models that think before these calls have been seen to forget the end of the thought."""
        return (self.opening, self.call_opening)

    @property
    def borders(self) -> tuple[str, ...]:
        """What no header has in it, nor what is no JSON."""
        return (self.opening, self.call_opening, self.call_closing, self.closing)

    def text_and_calls(self, tools: Sequence[Tool], *, several: bool) -> Tag:
        """See `ToolFormat`. Calls that are read outside of a section are enforced there, too."""
        section = self.calls(tools, several=several, enforced=False)
        bare = [self.tag(tool, enforced=False) for tool in tools]
        return text_with(self.triggers, [section, *bare], several=several)

    @abstractmethod
    def read_header(self, source: Source) -> Reading[tuple[str, str] | None]:
        """Read what stands before the arguments. Return the name in it, and what stands after the arguments.

        If there is no name, read nothing and return None.
        """

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. The beginning of the section may be missing, and each end: models forget them."""
        called = False
        while True:
            space, marker = yield from text_until(source, self.borders, emit)
            if marker is None:
                return
            if called and marker in (self.call_closing, self.closing):
                yield from source.skip_space()
                continue
            opening = space + marker
            if marker == self.opening:
                opening += yield from source.space()
                if (yield from source.accept(self.call_opening)):
                    marker = self.call_opening
                    opening += marker
            header = (yield from self.read_header(source)) if marker == self.call_opening else None
            if header is None:
                emit(Text(opening))
                continue
            called = True
            name, end = header
            emit(Call(name))
            yield from self._read_arguments(source, emit, end)
            yield from source.skip_space()

    def _read_arguments(self, source: Source, emit: Emit, end: str) -> Reading[None]:
        if (yield from source.skip_space()) in ("{", "[", '"'):
            complete = yield from read_arguments(source, lambda text: emit(Arguments(text)))
            if complete and not end:
                return
            border = yield from source.until((end, *self.borders) if complete else self.borders, drop)
        else:
            border = yield from source.until(self.borders, drop)
            if border == self.call_closing:
                emit(Arguments("{}"))
        if border != end:
            source.put_back(border or "")
