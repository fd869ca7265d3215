"""Gemma: call:name{key:text,other:3} between control tokens, and another one around texts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from inflight_client import Message
from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source, drop
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.called_name import read_name
from inflight_gateway.tool_formats.gemma_values import Notation, NotExpressible
from inflight_gateway.tool_formats.own_ids import with_own_ids
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat
from inflight_gateway.tool_formats.unenforceable import Unenforceable

_CALL = "call:"

_INSTRUCTIONS = """# Tools

Call a function, if you need it, with {open}call:NAME{{key:value,...}}{close}. Texts stand between {quote}. These are
the functions:

{tools}"""


class _Gemma(ToolFormat):
    """The control tokens: those around a call, and the one around texts."""

    _names: ClassVar[str]
    """The models, for errors."""

    def __init__(self) -> None:
        self._open, self._close, quote = self.markers
        self._notation = Notation(quote)

    def tag(self, tool: Tool, *, enforced: bool) -> Tag:
        """See `ToolFormat`. Raises Unenforceable for a schema that bounds texts or the lengths of lists."""
        try:
            arguments = self._notation.tag_of(tool.parameters, enforced=enforced or tool.strict)
        except NotExpressible as error:
            reason = f"its schema {error}, which {self._names}'s format cannot express"
            raise Unenforceable(tool.name, reason) from None
        return tag(f"{self._open}{_CALL}{tool.name}", arguments, self._close)

    def read(self, source: Source, emit: Emit, tools: Mapping[str, Tool]) -> Reading[None]:
        """See `ToolFormat`."""
        begin, end = self._open, self._close
        while True:
            space, marker = yield from text_until(source, (begin,), emit)
            if marker is None:
                return
            is_call = yield from source.accept(_CALL)
            found = (yield from read_name(source, ("{",))) if is_call else None
            if found is None:
                emit(Text(space + begin + (_CALL if is_call else "")))
                continue
            name, brace = found
            source.put_back(brace)
            emit(Call(name))
            complete = yield from self._notation.read(source, lambda part: emit(Arguments(part)))
            yield from source.skip_space()
            is_closed = yield from source.accept(end)
            border = None if is_closed or complete else (yield from source.until((end, begin), drop))
            if border == begin:
                source.put_back(begin)
            yield from source.skip_space()

    def instructions(self, tools: Sequence[Tool]) -> str:
        """See `ToolFormat`."""
        shown = json_text.lines_of(tool.shown() for tool in tools)
        return _INSTRUCTIONS.format(open=self._open, close=self._close, quote=self._notation.quote, tools=shown)

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """See `ToolFormat`."""
        return "".join(
            f"{self._open}{_CALL}{call.name}{self._notation.written(call.arguments)}{self._close}" for call in calls
        )


class Gemma4(_Gemma):
    """<|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>."""

    name, _names = "gemma4", "Gemma 4"
    markers = ("<|tool_call>", "<tool_call|>", '<|"|>')
    triggers = markers[:1]


class FunctionGemma(_Gemma):
    """<start_function_call>call:name{key:<escape>text<escape>,other:3}<end_function_call>."""

    name, _names = "functiongemma", "FunctionGemma"
    markers = ("<start_function_call>", "<end_function_call>", "<escape>")
    triggers = markers[:1]

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """See `ToolFormat`. Its template refuses a result without the name of its tool, which OpenAI's do not have."""
        names: dict[str, str] = {}
        shown: list[Message] = []
        for message in with_own_ids(super().shown(messages)):
            calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
            names.update((str(call["id"]), call["function"]["name"]) for call in calls)
            if message["role"] == "tool" and (name := names.get(str(message.get("tool_call_id")))) is not None:
                message = {**message, "name": name}
            shown.append(message)
        return shown
