"""Values in formats of calls where texts stand as they are, and other values as JSON."""

from collections.abc import Mapping, Set
from typing import Any

from inflight_gateway import structural_tags
from inflight_gateway.pieces import Arguments
from inflight_gateway.reader import Emit
from inflight_gateway.source import Reading, Source
from inflight_gateway.strict_json import read_json
from inflight_gateway.structural_tags import ANY_TEXT, Tag, either
from inflight_gateway.tool_formats import json_text
from inflight_gateway.tool_formats.tool import Tool
from inflight_gateway.tool_formats.unenforceable import Unenforceable

_PYTHON = {"True": "true", "False": "false", "None": "null"}
# What a text may have beside its type without a bound on the text.
_OF_FREE_TEXT = {"type", "anyOf", "title", "description", "default", "examples"}
# Of a schema whose types are looked for.
_MAX_PARTS = 100


def written_value(value: object) -> str:
    """Return a value as it stands in a call."""
    return value if isinstance(value, str) else json_text.text_of(value)


def properties_of(tool: Tool) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by name."""
    return _object(tool.parameters.get("properties"))


def required_of(tool: Tool) -> list[Any]:
    """Return the names of the parameters that a call must have."""
    return _list(tool.parameters.get("required"))


def read_value(source: Source, emit: Emit, end: str, types: Set[str], *, padding: str = "") -> Reading[None]:
    """Read the value of a parameter up to `end`, and emit its JSON. Text is passed on as it arrives.

    `types`: those that the value may have, as far as they are known. `padding`: what stands before and after the value,
    and may be missing.
    """
    if padding:
        yield from source.accept(padding)
    ends = (f"{padding}{end}", end)
    if types == {"string"}:
        emit(Arguments('"'))
        if (yield from source.until(ends, lambda text: emit(Arguments(json_text.inside_quotes(text))))) is not None:
            emit(Arguments('"'))
        return
    written: list[str] = []
    if (yield from source.until(ends, written.append)) is not None:
        emit(Arguments(_as_json("".join(written), types)))


def _as_json(text: str, types: Set[str]) -> str:
    """Return the JSON of a value that need not be text."""
    written = _PYTHON.get(text.strip(), text.strip())
    if "string" in types and written != "null":
        return json_text.text_of(text)
    try:
        read_json(written)
    except (ValueError, RecursionError):
        return json_text.text_of(text)
    return written


def types_of(tool: Tool | None, key: str) -> set[str]:
    """Return the types that the schema of a parameter allows, as far as it names them."""
    return set() if tool is None else _types(properties_of(tool).get(key), tool.parameters)


def _types(schema: Any, whole: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema allows, as far as it names them. `whole`: the schema that it refers to."""
    parts: list[Any] = [schema]
    found: set[str] = set()
    for part in map(_object, parts):  # The list grows meanwhile.
        kinds = part.get("type", "string" if _are_texts(part.get("enum")) else [])
        found.update(kind for kind in _list(kinds) if isinstance(kind, str))
        if len(parts) < _MAX_PARTS:
            name = str(part.get("$ref")).rpartition("/")[2]
            referred = [_object(whole.get(key)).get(name) for key in ("$defs", "definitions")]
            parts += [*_list(part.get("anyOf")), *_list(part.get("oneOf")), *filter(None, referred)]
    return found


def _object(value: Any) -> Mapping[str, Any]:
    """Return an object as it is. What is none, in the schema of a client, counts as empty."""
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    """Return a list as it is, and a text as a list of one."""
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)


def json_tag(tool: Tool, schema: Any) -> Tag:
    """Return the structural tag of the value of a parameter that is written as JSON."""
    definitions = {name: tool.parameters[name] for name in ("$defs", "definitions") if name in tool.parameters}
    return structural_tags.json_value({**definitions, **_object(schema)})


def value_tag(tool: Tool, key: str, schema: Any, models: str) -> Tag:
    """Return the structural tag of the value of a parameter. `models`: whose format it is, for the error.

    Raises:
        Unenforceable: the schema is one of texts that is more than a choice.
    """
    if "string" not in types_of(tool, key):
        return json_tag(tool, schema)
    if _are_texts(_object(schema).get("enum")):
        return either(*map(structural_tags.text, schema["enum"]))
    if all(part.keys() <= _OF_FREE_TEXT for part in (_object(schema), *map(_object, _list(schema.get("anyOf"))))):
        return ANY_TEXT
    raise Unenforceable(tool.name, f"the schema of {key}, {json_text.text_of(schema)}, in {models}'s format")
