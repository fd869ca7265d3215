"""Formats in which two markers enclose a list of calls as JSON."""

from collections.abc import Mapping

from inflight_gateway.pieces import Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.tool_formats.json_call import read_call, read_calls
from inflight_gateway.tool_formats.tool import Tool
from inflight_gateway.tool_formats.tool_format import ListFormat


class MarkedList(ListFormat):
    """See the module. The two are the only markers."""

    def read_one(self, source: Source, emit: Emit) -> Reading[str | None]:
        """Read one call of the list, as `read_call` does."""
        return read_call(source, emit)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        begin, end = self.markers
        called = False
        while True:
            space, marker = yield from text_until(source, (begin, end), emit)
            if marker is None:
                return
            if marker == begin:
                called = yield from read_calls(source, emit, space + begin, self.read_one)
            elif called:
                yield from source.skip_space()
                called = False
            else:
                emit(Text(space + end))
