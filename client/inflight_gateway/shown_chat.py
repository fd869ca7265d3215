"""A chat as the model's template shows it to the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from inflight_client import InvalidRequest, Message
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

    Raises:
        InvalidRequest: there are calls that neither the template nor the gateway can write. As in refusals of the
            server, the field is that of the server.
    """
    form = formats.tool_format
    if form is None and not formats.template_writes_calls:
        _check_has_no_calls(messages)
    if form is not None:
        messages = form.shown(messages) if formats.template_writes_calls else _without_calls(messages, form)
        if tools and formats.tools_variable is None:
            messages = _with_instructions(messages, form.instructions(tools))
    shown = form.shown_tools(tools) if form is not None and tools else None
    if formats.tools_variable == "tools":
        return ShownChat(messages, shown, template_kwargs)
    if formats.tools_variable is not None and shown is not None:
        template_kwargs = {formats.tools_variable: shown, **template_kwargs}
    return ShownChat(messages, None, template_kwargs)


def _check_has_no_calls(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        if message.get("tool_calls"):
            reason = "the model's chat template does not write calls, and the gateway does not know how the model does"
            hint = "its option --tool-format can say it"
            raise InvalidRequest(f"messages[{index}].tool_calls cannot be shown to the model: {reason}; {hint}")


def _with_instructions(messages: Sequence[Message], instructions: str) -> list[Message]:
    """Add instructions to the system message, or as the system message."""
    first, *others = messages
    if first["role"] != "system":
        return [{"role": "system", "content": instructions}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{instructions}"}, *others]


def _without_calls(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """Write calls and their results as text. If the format has no role for results, they are what the user says, as in
    the templates of Hermes."""
    written: list[Message] = []
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        if are_results and form.result_role is not None:
            written += [{"role": form.result_role, "content": message["content"]} for message in group]
        elif are_results:
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
