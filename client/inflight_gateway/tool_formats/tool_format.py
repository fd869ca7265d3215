"""The base of all tool formats."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from inflight_client import Message
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
    result_role: ClassVar[str | None] = None
    """The role of results where the template writes no calls. None: results are what the user says."""
    reads_every_answer: ClassVar[bool] = False
    """Whether answers without calls are also written in this format."""

    @property
    def ends_thoughts(self) -> tuple[str, ...]:
        """Texts that end a thought where they begin, because a call begins there and the model forgot the end."""
        return ()

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

    def of_enforced_answers(self) -> "ToolFormat":
        """Return the format that reads answers which match a structural tag. As a rule, it is the same."""
        return self

    @abstractmethod
    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """Read an answer to its end, and emit its pieces as early as possible.

        `tools`: those that the answer may call, by name.
        """

    @abstractmethod
    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return what tells a model whose template knows no tools how to call them."""

    @abstractmethod
    def written(self, calls: Sequence[WrittenCall]) -> str:
        """Return calls as the model writes them."""

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """Return a chat as the templates of these models take it."""
        shown: list[Message] = []
        for message in messages:
            if calls := message.get("tool_calls"):
                message = {**message, "tool_calls": [{**call, "id": self.shown_id(str(call["id"]))} for call in calls]}
            if (call_id := message.get("tool_call_id")) is not None:
                message = {**message, "tool_call_id": self.shown_id(call_id)}
            shown.append(message)
        return shown

    def shown_tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]]:
        """Return tools as the templates of these models take them."""
        return [tool.shown() for tool in tools]

    def shown_id(self, call_id: str) -> str:
        """Return the id of a call as the templates of these models take it."""
        return call_id


class ListFormat(ToolFormat):
    """A format whose calls stand in one list, so that only the list has a beginning and an end."""

    opening: ClassVar[str]
    closing: ClassVar[str]
    also_read: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Other texts around lists that are read as calls, too. So free text must not have them around something else."""
    separator = ", "

    def calls(self, tools: Sequence[Tool], *, several: bool, enforced: bool = True) -> Tag:
        """See `ToolFormat`."""
        content = super().calls(tools, several=several, enforced=enforced)
        return structural_tags.tag(self.opening, content, self.closing)

    def text_and_calls(self, tools: Sequence[Tool], *, several: bool) -> Tag:
        """See `ToolFormat`."""
        calls = self.calls(tools, several=several, enforced=False)
        others = [{**calls, "begin": opening, "end": closing} for opening, closing in self.also_read]
        return structural_tags.text_with(self.triggers, [calls, *others], several=False)
