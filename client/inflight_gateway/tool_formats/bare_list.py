"""Formats in which only brackets enclose a list of calls."""

from collections.abc import Sequence

from inflight_gateway import structural_tags
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats.tool import Tool
from inflight_gateway.tool_formats.tool_format import ListFormat, ToolFormat


class BareList(ListFormat):
    """See the module. Texts have brackets, too, so only a list that begins with a call of a tool is one of calls."""

    triggers = ()
    opening, closing = "[", "]"

    def __init__(self, *, exact: bool = False) -> None:
        """`exact`: only what structural tags enforce is read as calls, not what is free text for them."""
        self.exact = exact

    def of_enforced_answers(self) -> ToolFormat:
        """See `ToolFormat`."""
        return type(self)(exact=True)

    def text_and_calls(self, tools: Sequence[Tool], *, several: bool) -> Tag:
        """See `ToolFormat`. In texts, a bracket alone begins no list of calls; only one with a tool's name does.

        A further call is enforced wherever its beginning stands, because it may follow each of the tools.
        """
        calls = [self.tag(tool, enforced=False) for tool in tools]
        beginnings, end = (("[", self.separator), "") if several else (("[",), "]")
        tags = [
            tag(beginning + call["begin"], call["content"], call["end"] + end)
            for call in calls
            for beginning in beginnings
        ]
        return structural_tags.text_with([one["begin"] for one in tags], tags, several=several)

    def read_separator(self, source: Source) -> Reading[str | None]:
        """Read what stands between two calls. None: the list ends here."""
        if self.exact:
            if (yield from source.accept(self.separator)):
                return self.separator
            yield from source.accept("]")
            return None
        yield from source.skip_space()
        if (yield from source.accept("]")):
            return None
        return ("," + (yield from source.space())) if (yield from source.accept(",")) else ""
