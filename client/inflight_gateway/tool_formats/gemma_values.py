"""The values of Gemma's calls: like JSON, but names are bare, and texts stand between quotes as they are."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from inflight_gateway.source import Reading, Source, Take
from inflight_gateway.strict_json import read_json
from inflight_gateway.structural_tags import (
    ANY_TEXT,
    Tag,
    any_number_of,
    either,
    json_value,
    members,
    regex,
    sequence,
    tag,
    text,
)
from inflight_gateway.tool_formats import json_reader, json_text

_MAX_DEPTH = 64
_SCALAR = re.compile(r"[^,}\]<]+")
_OF_SCALARS = ("number", "integer", "boolean", "null")
_BOUNDS = ("pattern", "format", "minLength", "maxLength", "minItems", "maxItems", "prefixItems", "allOf", "not")
# What says nothing of a value.
_SILENT = ("type", "title", "description", "default", "examples")
# Of the tags of one schema, which may refer to itself.
_MAX_PARTS, _MAX_TAG_DEPTH = 2000, 16
_NAME = regex("[A-Za-z0-9_.-]{1,64}")
# Of values whose schema says nothing. Grammars of tags cannot refer to themselves.
_ANY_DEPTH = 3


class NotExpressible(Exception):
    """A part of a schema that cannot be enforced in this notation. The message says what the schema has."""


class Notation:
    """How values are written, with a text around texts."""

    def __init__(self, quote: str) -> None:
        self.quote = quote
        self.text = tag(quote, ANY_TEXT, quote)
        """The structural tag of any text."""

    def read(self, source: Source, take: Take, depth: int = 0) -> Reading[bool]:
        """Pass on a value as JSON. Return whether it is complete."""
        following = yield from source.skip_space()
        if (yield from source.accept(self.quote)):
            take('"')
            if (yield from source.until((self.quote,), lambda part: take(json_text.inside_quotes(part)))) is None:
                return False
            take('"')
            return True
        if following in ("{", "["):
            return depth < _MAX_DEPTH and (yield from self._read_nested(source, take, depth))
        if following == '"':
            return (yield from json_reader.value(source, take))
        written = ""
        while part := source.run(_SCALAR):
            written += part
            yield from source.peek()
        if not written or not (yield from source.peek()):
            return False  # What was cut off, such as `tru`, is another value, or none.
        take(_as_json(written.strip()))
        return True

    def _read_nested(self, source: Source, take: Take, depth: int) -> Reading[bool]:
        opening = source.take(1)
        closing = "}" if opening == "{" else "]"
        take(opening)
        separator = ""
        while (following := (yield from source.skip_space())) != closing:
            if separator:
                if following != ",":
                    return False
                source.take(1)
                if (yield from source.skip_space()) == closing:
                    continue
            take(separator)
            separator = ", "
            if opening == "{":
                name = yield from self._read_name(source)
                if name is None:
                    return False
                take(f"{json_text.text_of(name)}: ")
            if not (yield from self.read(source, take, depth + 1)):
                return False
        take(source.take(1))
        return True

    def _read_name(self, source: Source) -> Reading[str | None]:
        written: list[str] = []
        if (yield from source.accept(self.quote)):
            yield from source.until((self.quote,), written.append)
            yield from source.skip_space()
            return "".join(written) if (yield from source.accept(":")) else None
        end = yield from source.until((":", ",", "}", "<"), written.append)
        return "".join(written).strip().strip('"') if end == ":" else None

    def written(self, value: object) -> str:
        """Return a value as text, with the names of an object in alphabetical order, as chat templates do."""
        match value:
            case str():
                return f"{self.quote}{value}{self.quote}"
            case dict():
                return f"{{{','.join(f'{name}:{self.written(value[name])}' for name in sorted(value))}}}"
            case list():
                return f"[{','.join(map(self.written, value))}]"
        return json_text.text_of(value)

    def tag_of(self, schema: Mapping[str, Any], *, enforced: bool) -> Tag:
        """Return the structural tag of the arguments of a schema.

        Raises:
            NotExpressible: the schema cannot be enforced, though `enforced` asks for it. Otherwise arguments may have
                more than it allows.
        """
        try:
            return _Writer(self, schema, enforced=enforced).of(schema)
        except NotExpressible:
            if enforced:
                raise
            return _any_object(self, _ANY_DEPTH)


def _as_json(written: str) -> str:
    try:
        read_json(written)
    except (ValueError, RecursionError):
        return json_text.text_of(written)
    return written


class _Writer:
    def __init__(self, notation: Notation, root: Mapping[str, Any], *, enforced: bool) -> None:
        self._notation, self._root, self._enforced = notation, root, enforced
        self._parts = self._depth = 0

    def of(self, schema: Any) -> Tag:
        self._count(1)
        self._depth += 1
        if self._depth > _MAX_TAG_DEPTH:
            raise NotExpressible(f"is nested more than {_MAX_TAG_DEPTH} deep")
        found = self._of(schema)
        self._depth -= 1
        return found

    def _of(self, schema: Any) -> Tag:
        if not isinstance(schema, dict):
            return self._anything(schema)
        if self._enforced and (bound := next((name for name in _BOUNDS if name in schema), None)) is not None:
            raise NotExpressible(f"has {bound} {json_text.text_of(schema[bound])}")
        if isinstance(reference := schema.get("$ref"), str):
            return self.of(self._referred(reference))
        for name in ("anyOf", "oneOf"):
            if isinstance(parts := schema.get(name), list) and parts:
                return either(*map(self.of, parts))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return either(*(text(self._notation.written(value)) for value in values))
        kinds = schema.get("type")
        if isinstance(kinds, list) and kinds:
            return either(*(self.of({**schema, "type": kind}) for kind in kinds))
        return self._of_type(kinds, schema)

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > _MAX_PARTS:
            raise NotExpressible(f"has more than {_MAX_PARTS} parts")

    def _of_type(self, kind: Any, schema: Mapping[str, Any]) -> Tag:
        if kind == "string":
            return self._notation.text
        if kind in _OF_SCALARS:
            return json_value(schema if self._enforced else {"type": kind})
        if kind == "array":
            return _list_of(self.of(schema.get("items", {})))
        if kind == "object" and isinstance(properties := schema.get("properties"), dict):
            required = schema.get("required")
            needed = set(required) if isinstance(required, list) else set()
            self._count(len(properties) ** 2)
            values = {name: self.of(properties[name]) for name in sorted(properties)}
            return tag("{", members(values, needed, assign=":", separator=","), "}")
        return self._anything(schema)

    def _referred(self, reference: str) -> Any:
        found: Any = self._root
        for name in reference.removeprefix("#/").split("/"):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _anything(self, schema: Any) -> Tag:
        kind = schema.get("type") if isinstance(schema, dict) else None
        says_nothing = schema is True or (isinstance(schema, dict) and schema.keys() <= set(_SILENT))
        if self._enforced and not (says_nothing and kind in (None, "object")):
            raise NotExpressible(f"has the part {json_text.text_of(schema)}")
        return (_any_object if kind == "object" else _any_value)(self._notation, _ANY_DEPTH)


def _list_of(item: Tag) -> Tag:
    return tag("[", any_number_of(item, ","), "]")


def _any_value(notation: Notation, depth: int) -> Tag:
    return either(*_any_kinds(notation, depth))


def _any_kinds(notation: Notation, depth: int) -> Iterator[Tag]:
    if depth:
        yield _any_object(notation, depth)
        yield _list_of(_any_value(notation, depth - 1))
    yield json_value({"type": list(_OF_SCALARS)})
    yield notation.text


def _any_object(notation: Notation, depth: int) -> Tag:
    return tag("{", any_number_of(sequence(_NAME, text(":"), _any_value(notation, depth - 1)), ","), "}")
