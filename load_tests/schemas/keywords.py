"""JSON schemas that use one keyword, or one way of using it, each. Not all are served."""

from load_tests.schemas.applications import COUNT, FLAG, TEXT, Schema, closed, list_of, one_of

_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "regex", "x")
_PATTERNS = (
    *("^a+$", "^[a-c]{1,3}$", "b", "^a", "b$", "^(ab|cd)*$", "^(?:x|yz){2}$", "^[^a-z]{2}$", r"^\d{2}\w\s$"),
    *("^.{0,5}$", "^é{1,2}$", "^[à-ü]+$", r"^\u0041b$", r"^a\.b\/c$", '^"quoted"$', r"^\\{2}$", "^$", "", "^a{2,}$"),
    *("^(a|b|)c?$", "(?=a)b", "(?i)abc", r"(a)\1", r"\bword\b", "[", "^(a"),
)
_NUMBERS: tuple[Schema, ...] = (
    *({"minimum": 10}, {"maximum": -1}, {"minimum": -5, "maximum": 5}, {"minimum": 0, "maximum": 0}),
    *({"exclusiveMinimum": 0, "exclusiveMaximum": 3}, {"exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    *({"multipleOf": 7}, {"multipleOf": 7, "minimum": 20, "maximum": 30}, {"minimum": 0.5, "maximum": 2.25}),
    *({"minimum": 999_999, "maximum": 1_000_001}, {"minimum": -1e3, "maximum": 1e3}, {"minimum": 3, "maximum": 2}),
)
_VALUES: tuple[object, ...] = (
    *("", "a b", 'say "hi"', "back\\slash", "line\nbreak", "π", "😀"),
    *(0, -1, 1.5, True, None, [], {}, [1, "a"], {"a": {}}),
)

_STRINGS: dict[str, Schema] = {
    "minLength": {"type": "string", "minLength": 4},
    "maxLength": {"type": "string", "maxLength": 2},
    "maxLength 0": {"type": "string", "maxLength": 0},
    "minLength over maxLength": {"type": "string", "minLength": 3, "maxLength": 2},
    "pattern and length": {"type": "string", "pattern": "^[ab]+$", "minLength": 2, "maxLength": 4},
    "pattern without type": {"pattern": "^a$"},
}
_ARRAYS: dict[str, Schema] = {
    "minItems": list_of(FLAG, 4, minItems=2),
    "maxItems 0": list_of(FLAG, 0),
    "minItems over maxItems": list_of(FLAG, 1, minItems=2),
    "prefixItems": {"type": "array", "prefixItems": [FLAG, COUNT], "maxItems": 3},
    "prefixItems, closed": {"type": "array", "prefixItems": [FLAG, COUNT], "items": False},
    "items of draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [FLAG, COUNT],
        "additionalItems": False,
    },
    "items true": {"type": "array", "items": True, "maxItems": 2},
    "any items": {"type": "array", "maxItems": 2},
    "uniqueItems": list_of(one_of(1, 2, 3), uniqueItems=True),
    "contains": list_of(COUNT, contains={"const": 5}),
    "unevaluatedItems": {"type": "array", "prefixItems": [FLAG], "unevaluatedItems": False},
    "nested": list_of(list_of(list_of(FLAG, 1), 1), 1),
}
_OBJECTS: dict[str, Schema] = {
    "required": {"type": "object", "properties": {"a": FLAG}, "required": ["a"]},
    "required without a schema": {"type": "object", "properties": {"a": FLAG}, "required": ["a", "b"]},
    "required alone": {"type": "object", "required": ["a"], "maxProperties": 1},
    "additionalProperties true": {"type": "object", "properties": {"a": FLAG}, "additionalProperties": True},
    "additionalProperties": {"type": "object", "properties": {"a": FLAG}, "additionalProperties": COUNT},
    "patternProperties": {"type": "object", "patternProperties": {"^x_": COUNT}, "additionalProperties": False},
    "patternProperties and properties": {
        "type": "object",
        "properties": {"a": FLAG},
        "patternProperties": {"^[xy]$": COUNT},
        "additionalProperties": False,
        "required": ["a"],
    },
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-z]$"}, "maxProperties": 2},
    "minProperties": {"type": "object", "additionalProperties": FLAG, "minProperties": 1, "maxProperties": 2},
    "minProperties of many": {"type": "object", "additionalProperties": FLAG, "minProperties": 4},
    "maxProperties": {**closed([], a=FLAG, b=FLAG, c=FLAG), "maxProperties": 2},
    "maxProperties 0": {"type": "object", "maxProperties": 0},
    "dependentRequired": {**closed([], a=FLAG, b=FLAG), "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {**closed([], a=FLAG), "dependentSchemas": {"a": {"required": ["a"]}}},
    "unevaluatedProperties": {"type": "object", "properties": {"a": FLAG}, "unevaluatedProperties": False},
    "names that must be escaped": closed(**{'a "b"': FLAG, "c\\d": FLAG, "": FLAG, "π": FLAG, "e\nf": FLAG}),
    "names like keywords": closed(type=FLAG, properties=FLAG, required=FLAG, **{"$ref": FLAG}),
    "property that is true": {"type": "object", "properties": {"a": True}, "required": ["a"], "maxProperties": 1},
    "property that is false": {"type": "object", "properties": {"a": False}},
    "properties without type": {"properties": {"a": FLAG}, "required": ["a"]},
}
_COMBINED: dict[str, Schema] = {
    "anyOf": {"anyOf": [FLAG, COUNT, TEXT]},
    "anyOf beside properties": {**closed(["a"], a=FLAG, b=COUNT), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "oneOf, disjoint": {"oneOf": [FLAG, COUNT]},
    "oneOf, overlapping": {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]},
    "oneOf of texts": {"oneOf": [{"const": "a"}, {"const": "b"}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]},
    "allOf without a match": {"allOf": [{"type": "integer"}, {"type": "string"}]},
    "allOf of open objects": {"allOf": [{"properties": {"a": FLAG}}, {"properties": {"b": FLAG}}], "type": "object"},
    "allOf of references": {
        "$defs": {"a": {"type": "object", "properties": {"a": FLAG}, "required": ["a"]}},
        "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": COUNT}, "required": ["b"], "maxProperties": 2}],
    },
    "not": {"type": "string", "not": {"const": "a"}},
    "if": {"if": {"const": 1}, "then": {"const": 1}, "else": {"type": "string"}},
    "types": {"type": ["boolean", "null", "integer"], "minimum": 5},
    "type and enum": {"type": "integer", "enum": [1, "a", 2]},
    "const and enum": {"const": 2, "enum": [1, 2]},
    "const outside of the enum": {"const": 3, "enum": [1, 2]},
    "empty enum": {"enum": []},
    "reference with siblings": {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 5, "maximum": 7},
    "reference to the root": {**closed([], again={"$ref": "#"}, n=COUNT)},
    "reference to a property": closed(a=COUNT, b={"$ref": "#/properties/a"}),
    "reference to nothing": {"$ref": "#/$defs/missing"},
    "reference elsewhere": {"$ref": "https://example.org/schema.json"},
    "reference that never ends": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "anchor": {"$defs": {"n": {"$anchor": "number", "type": "integer", "maximum": 9}}, "$ref": "#number"},
    "mutual references": {
        "$defs": {"a": closed([], b={"$ref": "#/$defs/b"}), "b": closed([], a={"$ref": "#/$defs/a"})},
        "$ref": "#/$defs/a",
    },
    "annotations": {**COUNT, "title": "T", "description": "D", "default": 1, "examples": [1], "deprecated": True},
    "unknown keyword": {**COUNT, "colour": "red"},
    "unknown type": {"type": "date"},
    "type that is no text": {"type": 5},
    "nullable of OpenAPI": {**COUNT, "nullable": True},
}

KEYWORDS: dict[str, Schema] = {
    **{
        f"type {kind}": {"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "array", "object")
    },
    **{f"format {name}": {"type": "string", "format": name} for name in _FORMATS},
    **{f"pattern {pattern}": {"type": "string", "pattern": pattern, "maxLength": 9} for pattern in _PATTERNS},
    **{f"integer {bounds}": {"type": "integer", **bounds} for bounds in _NUMBERS},
    **{f"number {bounds}": {"type": "number", **bounds} for bounds in _NUMBERS},
    **{f"const {value!r}": {"const": value} for value in _VALUES},
    "enum": one_of(*_VALUES),
    **_STRINGS,
    **_ARRAYS,
    **_OBJECTS,
    **_COMBINED,
}
"""Schemas by name."""
