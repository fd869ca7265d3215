"""gpt-oss: messages with headers, such as <|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}.

OpenAI calls this format Harmony. A thought is a message of the channel `analysis`, and the answer one of `final`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from inflight_client import Message
from inflight_gateway.pieces import Arguments, Call, Text, Thought
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source, drop
from inflight_gateway.structural_tags import ANY_TEXT, Tag, either, sequence, tag, text
from inflight_gateway.tool_formats import json_reader, json_text
from inflight_gateway.tool_formats.own_ids import with_own_ids
from inflight_gateway.tool_formats.tool import NAME, Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
ASSISTANT = f"{START}assistant"
FINAL = f"{CHANNEL}final{MESSAGE}"
_CALL, _RETURN, _CONSTRAIN = "<|call|>", "<|return|>", "<|constrain|>"
_TO, _FUNCTIONS = " to=", "functions."
# What ends a message, or begins the next one where the model forgets the end.
_BORDERS = (END, _CALL, _RETURN, START, CHANNEL)
_RECIPIENT = re.compile(r" to=([^\s<]+)")

_INSTRUCTIONS = """# Tools

Call one of these functions, if you need it, in a message of the channel commentary to functions.NAME, whose text is the
arguments as JSON:

{tools}"""


class Harmony(ToolFormat):
    """See the module. A call ends the answer, so there is one at most."""

    name = "harmony"
    markers = (START, CHANNEL, MESSAGE, END, _CALL, _CONSTRAIN)
    triggers = ()
    separator = f"{_CALL}{ASSISTANT}"
    reads_every_answer = True

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`."""
        return tag(f"{CHANNEL}commentary{_header(tool.name)}{MESSAGE}", tool.arguments(enforced=enforced), "")

    def calls(self, tools: Sequence[Tool], *, several: bool, enforced: bool = True) -> Tag:
        """See `ToolFormat`."""
        return super().calls(tools, several=False, enforced=enforced)

    def text_and_calls(self, tools: Sequence[Tool], *, several: bool) -> Tag:
        """See `ToolFormat`. Text has a header, too, so it is free only after it. What comes before a call is told in
        the channel `commentary`."""
        written = [
            tag(f"{header}{MESSAGE}", tool.arguments(enforced=False), "")
            for tool in tools
            # The recipient stands before the channel or after it.
            for header in (
                f"{CHANNEL}commentary{_header(tool.name)}",
                f"{_TO}{_FUNCTIONS}{tool.name}{CHANNEL}commentary json",
            )
        ]
        preamble = tag(f"{CHANNEL}commentary{MESSAGE}", ANY_TEXT, f"{END}{ASSISTANT}")
        return either(sequence(text(FINAL), ANY_TEXT), *written, sequence(preamble, either(*written)))

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`. Also emits thoughts."""
        # The prompt ends inside of a header. What has none continues a message of the prompt.
        header = [_TO] if (yield from source.accept(_TO)) else []
        border: str | None = CHANNEL
        if not header:
            _, border = yield from text_until(source, _BORDERS, emit)
        said: set[type[Text | Thought]] = set()
        while True:
            while border in (END, _CALL, _RETURN):
                border = yield from source.until(_BORDERS, drop)
            if border is None or (yield from source.until((MESSAGE,), header.append)) is None:
                return
            border = yield from _read_message(source, emit, "".join(header), tools, said)
            header = []

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        return _INSTRUCTIONS.format(tools=json_text.lines_of(tool.shown() for tool in tools))

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return self.separator.join(
            f"{CHANNEL}commentary{_header(call.name)}{MESSAGE}{json_text.text_of(call.arguments)}" for call in calls
        )

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """See `ToolFormat`. The templates take one call in a message, and either a thought or a text with it."""
        shown: list[Message] = []
        messages = with_own_ids(messages)
        placed: set[int] = set()
        for index, message in enumerate(messages):
            calls = message.get("tool_calls") or ()
            if not calls and index not in placed:
                shown.append(message)
            results = list(takewhile(lambda one: messages[one]["role"] == "tool", range(index + 1, len(messages))))
            for number, call in enumerate(calls):
                shown.append(_with_one_call(message if number == 0 else {"role": message["role"]}, call))
                own = [one for one in results if messages[one].get("tool_call_id") == call["id"]]
                shown += [messages[one] for one in own]
                placed.update(own)
        return shown

    def shown_tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]]:
        """See `ToolFormat`. The templates need a description."""
        return [replace(tool, description=tool.description or "").shown() for tool in tools]


def _with_one_call(message: Message, call: Mapping[str, object]) -> Message:
    thoughts = [str(thought) for name in ("reasoning_content", "content") if (thought := message.get(name))]
    shown: Message = {**message, "tool_calls": [call]}
    shown.pop("content", None)
    if thoughts:
        shown["reasoning_content"] = "\n".join(thoughts)
    return shown


def _header(name: str) -> str:
    return f"{_TO}{_FUNCTIONS}{name} {_CONSTRAIN}json"


def _read_message(
    source: Source, emit: Emit, header: str, tools: Mapping[str, Tool], said: set[type[Text | Thought]]
) -> Reading[str | None]:
    """Read the content of a message, and return the border after it. `said`: the kinds of text before it."""
    name = _called(header, tools)
    if name is None:
        kind = Thought if f"{CHANNEL}analysis" in CHANNEL + header else Text
        if kind in said:
            emit(kind("\n\n"))
        said.add(kind)
        return (yield from text_until(source, _BORDERS, emit, kind))[1]
    emit(Call(name))
    if (yield from source.skip_space()) not in ("", "<"):
        yield from json_reader.value(source, lambda part: emit(Arguments(part)))
    else:
        emit(Arguments("{}"))
    return (yield from source.until(_BORDERS, drop))


def _called(header: str, tools: Mapping[str, Tool]) -> str | None:
    """Return the name of the function that a message is for. None: it is for none, or there are no tools."""
    found = _RECIPIENT.search(header)
    if found is None or not tools:
        return None
    name = found[1].removeprefix(_FUNCTIONS)
    return name if NAME.fullmatch(name) and (name in tools or name != found[1]) else None
