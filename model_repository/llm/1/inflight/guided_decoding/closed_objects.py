"""Closes the objects of a JSON schema that do not say whether they may have further properties.

By the rules of JSON Schema they may. But a small model that may add properties often adds them until its output is cut
off. xgrammar, and so vLLM, closes such objects too. What matches the closed schema also matches the schema.
"""

from collections.abc import Callable
from typing import Any

from inflight.guided_decoding.schemas_in import BY_NAME, schemas_in

# Keywords whose values are lists of schemas, and schemas.
_LISTS = frozenset({"anyOf", "oneOf", "prefixItems"})
_SINGLE = frozenset({"items", "additionalProperties", "additionalItems"})
# An object with one of these says itself what else it may have, or another schema says it.
_OPEN = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties"})
_COMBINED = frozenset({"$ref", "anyOf", "oneOf"})


def close_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which objects have no other properties than those that it names.

    Where an object has properties in several parts, the schema stays as it is: with `allOf`, or `properties` beside
    `anyOf`, `oneOf` or `$ref`. Each part would be closed to the properties of the others.

    Raises:
        RecursionError: the schema is too deep.
    """
    return schema if any(map(_has_parts, schemas_in(schema))) else _closed(schema)


def _has_parts(schema: dict[str, Any]) -> bool:
    return "allOf" in schema or ("properties" in schema and not _COMBINED.isdisjoint(schema))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    closed = {key: _inner(key, value) for key, value in schema.items()}
    named = schema.get("properties")
    if isinstance(named, dict) and not (_OPEN | _COMBINED) & schema.keys() and _required(schema) <= named.keys():
        closed["additionalProperties"] = False
    return closed


def _inner(key: str, value: Any) -> Any:
    each: Callable[[Any], Any] = _closed
    if key in BY_NAME and isinstance(value, dict):
        return {name: each(part) for name, part in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [each(part) for part in value]
    return each(value) if key in _SINGLE else value


def _required(schema: dict[str, Any]) -> set[str]:
    required = schema.get("required", [])
    return {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
