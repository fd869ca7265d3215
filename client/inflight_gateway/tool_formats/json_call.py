"""Calls that are written as JSON objects: {"name": ..., "arguments": {...}}."""

from collections.abc import Callable, Container
from typing import TypeAlias

from inflight_gateway.pieces import Arguments, Call, Piece, Text
from inflight_gateway.source import Reading, Source, drop
from inflight_gateway.structural_tags import Tag, tag
from inflight_gateway.tool_formats import json_reader
from inflight_gateway.tool_formats.tool import Tool

_NAME = ("name", "function", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("type", "id", "tool_call_id")

ReadCall: TypeAlias = Callable[[Source, Callable[[Piece], object]], Reading[str | None]]
"""Reads a call, as `read_call` does."""


def call_tag(tool: Tool, *, enforced: bool) -> Tag:
    """Return the structural tag of a call. `enforced`: its arguments match the schema even if it is not strict."""
    return tag(beginning_of(tool.name), tool.arguments(enforced=enforced), "}")


def beginning_of(name: str) -> str:
    """Return what stands before the arguments in a call of the tool with this name that a structural tag writes."""
    return f'{{"name": "{name}", "arguments": '


def read_call(
    source: Source, emit: Callable[[Piece], object], names: Container[str] | None = None
) -> Reading[str | None]:
    """Read an object that is a call and return None. If it is none, emit nothing and return what has been read.

    The arguments are passed on as they arrive. Only where they come before the name do they wait for it.

    `names`: an object with another name is no call. None: each name is that of a tool.
    """
    source.keep()
    if not (yield from source.accept("{")):
        return source.kept()
    name: str | None = None
    early: list[str] = []
    has_arguments = False

    def take(text: str) -> None:
        if name is None:
            early.append(text)
        else:
            emit(Arguments(text))

    while (yield from source.skip_space()) == '"':
        key = yield from json_reader.string(source)
        yield from source.skip_space()
        if not (yield from source.accept(":")):
            break
        yield from source.skip_space()
        if key in _NAME and name is None:
            name = yield from json_reader.string(source)
            if not name or (names is not None and name not in names):
                return source.kept()
            source.kept()
            emit(Call(name))
            emit(Arguments("".join(early)))
        elif key in _ARGUMENTS and not has_arguments:
            has_arguments = True
            if not (yield from read_arguments(source, take)):
                break
        elif key in _OTHERS or name is not None:
            if not (yield from json_reader.value(source, drop)):
                break
        else:
            return source.kept()  # An object of another kind. The text need not wait until it ends.
        yield from source.skip_space()
        if not (yield from source.accept(",")):
            break
    complete = yield from source.accept("}")
    if name is not None and complete and not has_arguments:
        emit(Arguments("{}"))
    return source.kept() if name is None else None


def read_arguments(source: Source, take: Callable[[str], object]) -> Reading[bool]:
    """Read arguments: an object, or text that holds one, as OpenAI writes them."""
    if (yield from source.peek()) != '"':
        return (yield from json_reader.value(source, take))
    text = yield from json_reader.string(source)
    take(text or "")
    return text is not None


def read_calls(
    source: Source, emit: Callable[[Piece], object], opening: str, read_one: ReadCall = read_call
) -> Reading[bool]:
    """Read calls, one after the other or in a list, and the white space after them. Return whether there is one.

    What is none is text, with `opening` before it where no call has been read.
    """
    unread = opening + (yield from source.space())
    if (yield from source.peek()) != "[":
        while (text := (yield from read_one(source, emit))) is None:
            unread = ""
            if (yield from source.skip_space()) != "{":
                return True
        emit(Text(unread + text))
        return not unread
    unread += source.take(1) + (yield from source.space())
    while (yield from source.skip_space()) == "{":
        if (text := (yield from read_one(source, emit))) is not None:
            emit(Text(unread + text))
            return not unread
        unread = ""
        yield from source.skip_space()
        if not (yield from source.accept(",")):
            break
    if not (yield from source.accept("]")):
        emit(Text(unread))
        return not unread
    yield from source.skip_space()
    return True
