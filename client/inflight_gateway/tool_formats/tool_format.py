"""The base of all tool formats."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from inflight_gateway import structural_tags
from inflight_gateway.reader import Emit
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats.tool import Tool, WrittenCall


class ToolFormat(ABC):
    """How the models of a family write tool calls."""

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    """What encloses calls. Some of these are special tokens in some models."""
    triggers: ClassVar[tuple[str, ...]]
    """Texts with which a call begins, and no other text."""
    separator: ClassVar[str] = ""
    """What stands between calls."""

    @abstractmethod
    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """Return the structural tag of a call. `enforced`: its arguments match the schema even if it is not strict."""

    def calls(self, tools: Sequence[Tool], *, several: bool, enforced: bool = True) -> Tag:
        """Return the structural tag of an answer that consists of calls of these tools, at least one."""
        tags = [self.tag(tool, enforced=enforced) for tool in tools]
        return structural_tags.list_of(tags, self.separator, several=several)

    def text_and_calls(self, tools: Sequence[Tool], *, several: bool) -> Tag:
        """Return the structural tag of an answer that is free text, with or without calls."""
        tags = [self.tag(tool, enforced=False) for tool in tools]
        return structural_tags.text_with(self.triggers, tags, several=several)

    @abstractmethod
    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """Read an answer to its end, and emit its pieces as early as possible.

        `tools`: those of the request by name.
        """

    @abstractmethod
    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return what tells a model whose template knows no tools how to call them."""

    @abstractmethod
    def written(self, calls: Sequence[WrittenCall]) -> str:
        """Return calls as the model writes them."""

    def shown_id(self, call_id: str) -> str:
        """Return the id of a call as the templates of these models take it."""
        return call_id


class ListFormat(ToolFormat):
    """A format whose calls stand in one list, so that only the list has a beginning and an end."""

    opening: ClassVar[str]
    closing: ClassVar[str]
    separator = ", "

    def calls(self, tools: Sequence[Tool], *, several: bool, enforced: bool = True) -> Tag:
        """See `ToolFormat`."""
        content = super().calls(tools, several=several, enforced=enforced)
        return structural_tags.tag(self.opening, content, self.closing)

    def text_and_calls(self, tools: Sequence[Tool], *, several: bool) -> Tag:
        """See `ToolFormat`."""
        calls = self.calls(tools, several=several, enforced=False)
        return structural_tags.text_with(self.triggers, [calls], several=False)
