"""A chat as the model's template shows it to the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from inflight_client import Message
from inflight_gateway.formats import Formats
from inflight_gateway.strict_json import read_json
from inflight_gateway.tool_formats import Tool, ToolFormat, WrittenCall

_RESULT = "<tool_response>\n{content}\n</tool_response>"


@dataclass(frozen=True)
class ShownChat:
    """Messages, and what else the template gets."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    template_kwargs: Mapping[str, Any]

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the client that stand for the chat."""
        given = {"messages": self.messages, "tools": self.tools, "chat_template_kwargs": self.template_kwargs}
        return {name: value for name, value in given.items() if value}


def shown_chat(
    messages: Sequence[Message], tools: Sequence[Tool], template_kwargs: Mapping[str, Any], formats: Formats
) -> ShownChat:
    """Return a chat for the template of a model.

    What the template does not know of tools, the messages say in the words of the model's format.
    """
    if formats.tool_format is not None:
        adapt = _with_ids if formats.template_writes_calls else _without_calls
        messages = adapt(messages, formats.tool_format)
        if tools and formats.tools_variable is None:
            messages = _with_instructions(messages, formats.tool_format.instructions(tools))
    shown = [tool.shown() for tool in tools] or None
    if formats.tools_variable == "tools":
        return ShownChat(messages, shown, template_kwargs)
    if formats.tools_variable is not None and shown is not None:
        template_kwargs = {formats.tools_variable: shown, **template_kwargs}
    return ShownChat(messages, None, template_kwargs)


def _with_instructions(messages: Sequence[Message], instructions: str) -> list[Message]:
    """Add instructions to the system message, or as the system message."""
    first, *others = messages
    if first["role"] != "system":
        return [{"role": "system", "content": instructions}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{instructions}"}, *others]


def _without_calls(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """Write calls and their results as text. Results are what the user says, as in the templates of Hermes."""
    written: list[Message] = []
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        if are_results:
            results = "\n".join(_RESULT.format(content=message["content"]) for message in group)
            written.append({"role": "user", "content": results})
        else:
            written += [_as_text(message, form) for message in group]
    return written


def _as_text(message: Message, form: ToolFormat) -> Message:
    if not (calls := message.get("tool_calls")):
        return message
    text = form.written([_written_call(call) for call in calls])
    content = message.get("content")
    return {"role": message["role"], "content": f"{content}\n{text}" if content else text}


def _written_call(call: Mapping[str, Any]) -> WrittenCall:
    arguments = call["function"]["arguments"]
    try:
        return WrittenCall(call["function"]["name"], read_json(arguments))
    except (ValueError, RecursionError):
        return WrittenCall(call["function"]["name"], arguments)


def _with_ids(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """Give calls and results ids that the template takes."""
    shown: list[Message] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [{**call, "id": form.shown_id(str(call["id"]))} for call in calls]}
        if (call_id := message.get("tool_call_id")) is not None:
            message = {**message, "tool_call_id": form.shown_id(call_id)}
        shown.append(message)
    return shown
