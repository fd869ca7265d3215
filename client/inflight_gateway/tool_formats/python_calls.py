"""Calls as Python writes them: name(key="text", other=3)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from inflight_gateway.pieces import Arguments, Call, Text
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source, drop
from inflight_gateway.structural_tags import Tag, either, json_value, members, tag, text
from inflight_gateway.tool_formats import json_text, python_values
from inflight_gateway.tool_formats.bare_texts import properties_of, required_of
from inflight_gateway.tool_formats.called_name import read_name
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.unenforceable import Unenforceable

Constants: TypeAlias = Mapping[str, Sequence[str]]
"""How values of some types are written that are not written as in JSON."""

OF_PYTHON: Constants = {"boolean": ("True", "False"), "null": ("None",)}
OF_JSON: Constants = {}
# The tag names each parameter again after each one that may come first. The server takes no tag with as many names.
_MOST_NAMES = 1024


def call_tag(tool: Tool, constants: Constants, *, enforced: bool) -> Tag:
    """Return the structural tag of a call; see `ToolFormat.tag`. Raises Unenforceable if it would be too large."""
    _check_names(tool, required_of(tool) if enforced or tool.strict else [])
    if enforced or tool.strict:
        values = {key: _value_tag(tool, schema, constants) for key, schema in properties_of(tool).items()}
        needed = required_of(tool)
    else:
        anything = either(json_value({}), *(text(one) for written in constants.values() for one in written))
        values, needed = dict.fromkeys(properties_of(tool), anything), []
    return tag(f"{tool.name}(", members(values, needed, assign="=", separator=", "), ")")


def _check_names(tool: Tool, needed: Sequence[str]) -> None:
    names = list(properties_of(tool))
    may_be_first = next((index + 1 for index, name in enumerate(names) if name in needed), len(names))
    if may_be_first * len(names) > _MOST_NAMES:
        raise Unenforceable(
            tool.name,
            f"of its {len(names)} parameters, {may_be_first} may be the first one of a call; the product of both "
            f"numbers must be at most {_MOST_NAMES} in the model's format of calls",
        )


def _value_tag(tool: Tool, schema: Any, constants: Constants) -> Tag:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, str) and kind in constants:
        return either(*map(text, constants[kind]))
    definitions = {name: tool.parameters[name] for name in ("$defs", "definitions") if name in tool.parameters}
    return json_value({**definitions, **schema} if isinstance(schema, dict) else definitions)


def written_call(call: WrittenCall, written_value: Callable[[object], str]) -> str:
    """Return a call as the model writes it."""
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    return f"{call.name}({', '.join(f'{key}={written_value(value)}' for key, value in arguments.items())})"


def read_between(source: Source, emit: Emit, opening: str, closing: str, *, before: str = "[") -> Reading[None]:
    """Read an answer in which calls stand between two texts. `before`: what may be before the first call."""
    while True:
        space, marker = yield from text_until(source, (opening,), emit)
        if marker is None:
            return
        unread = space + opening + (yield from source.space())
        if (yield from source.accept(before)):
            unread += before + (yield from source.space())
        if not (yield from read_calls(source, emit)):
            emit(Text(unread))
            continue
        if (yield from source.until((closing, opening), drop)) == opening:
            source.put_back(opening)
        yield from source.skip_space()


def read_calls(source: Source, emit: Emit) -> Reading[bool]:
    """Read calls, and the commas or white space between them. Return whether there is one.

    A call whose arguments are malformed is the last one.
    """
    called = False
    while (found := (yield from read_name(source, ("(",)))) is not None:
        called = True
        emit(Call(found[0]))
        if not (yield from read_arguments(source, emit)):
            break
        yield from source.skip_space()
        if (yield from source.accept(",")):
            yield from source.skip_space()
    return called


def read_arguments(source: Source, emit: Emit) -> Reading[bool]:
    """Read up to the bracket that closes a call, and emit JSON. Return whether it is there."""
    separator = "{"
    while (yield from source.skip_space()) not in (")", ""):
        key: list[str] = []
        if (end := (yield from source.until(("=", ")", "<"), key.append))) != "=":
            source.put_back(end or "")
            return False
        value = yield from python_values.read(source)
        if value is None:
            return False
        emit(Arguments(f"{separator}{json_text.text_of(''.join(key).strip())}: {value}"))
        separator = ", "
        if not (yield from source.accept(",")):
            break
    if not (yield from source.accept(")")):
        return False
    emit(Arguments("{}" if separator == "{" else "}"))
    return True
