"""Generated JSON schemas."""

import json
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from load_tests.schemas.applications import Schema

_NAMES = ("id", "name", "value", "items", "π", 'a "b"')
_PATTERNS = ("^[a-z]+$", "[0-9]{2}", "^(red|green)$", r"^\w{2,5}@x\.org$", "a|b", "^.{3}$")
_FORMATS = ("date", "date-time", "time", "email", "ipv4", "uuid")
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-1000, 1000), st.sampled_from(["a", "é\\n", ""]))


@st.composite
def _bounds(draw: st.DrawFn, low: str, high: str, largest: int) -> Schema:
    first, second = sorted(draw(st.tuples(st.integers(0, largest), st.integers(0, largest))))
    return {key: value for key, value in ((low, first), (high, second)) if draw(st.booleans())}


def _with(schema: Schema) -> Any:
    return lambda more: {**schema, **more}


_STRINGS = st.one_of(
    _bounds("minLength", "maxLength", 20).map(_with({"type": "string"})),
    st.sampled_from(_PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 12}),
    st.sampled_from(_FORMATS).map(lambda name: {"type": "string", "format": name}),
)
_NUMBERS = st.builds(
    lambda kind, bounds, multiple: {"type": kind, **bounds, **({"multipleOf": multiple} if multiple else {})},
    st.sampled_from(["integer", "number"]),
    _bounds("minimum", "maximum", 500) | _bounds("exclusiveMinimum", "exclusiveMaximum", 500),
    st.sampled_from([None, None, 5]),
)
_LEAVES = st.one_of(
    _STRINGS,
    _NUMBERS,
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"], "maxLength": 5}]),
    st.lists(_SCALARS, min_size=1, max_size=4, unique_by=repr).map(lambda values: {"enum": values}),
    _SCALARS.map(lambda value: {"const": value}),
)


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4))
    schema: Schema = {"type": "object", "properties": properties}
    schema["required"] = [name for name in properties if draw(st.booleans())]
    schema |= draw(
        st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": {"type": "integer"}}])
    )
    if draw(st.integers(0, 3)) == 0:
        schema |= draw(st.sampled_from([{"minProperties": 1}, {"maxProperties": 1}, {"minProperties": 3}]))
    return schema


def _arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.builds(
        lambda items, prefix, bounds: {"type": "array", "items": items, **prefix, **bounds},
        inner,
        st.lists(inner, min_size=1, max_size=2).map(lambda first: {"prefixItems": first}) | st.just({}),
        _bounds("minItems", "maxItems", 3),
    )


def _combined(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.builds(lambda kind, parts: {kind: parts}, st.sampled_from(["anyOf", "oneOf", "allOf"]), several)


SCHEMAS: st.SearchStrategy[Schema] = st.recursive(
    _LEAVES, lambda inner: _objects(inner) | _arrays(inner) | _combined(inner), max_leaves=8
)
"""Schemas of many keywords, also with parts that nothing matches."""


def generated(count: int) -> dict[str, Schema]:
    """Return so many different schemas by their texts. They are the same each time."""
    found: dict[str, Schema] = {}

    @seed(0)
    @settings(
        max_examples=5 * count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(SCHEMAS)
    def collect(schema: Schema) -> None:
        found.setdefault(json.dumps(schema), schema)

    collect()
    return dict(list(found.items())[:count])
