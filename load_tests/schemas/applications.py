"""JSON schemas as applications send them."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "maxLength": 16}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 999}
FLAG: Schema = {"type": "boolean"}


def closed(required: list[str] | None = None, /, **properties: Schema) -> Schema:
    """An object with these properties and no others. All of them are required unless `required` names some."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def list_of(items: Schema, most: int = 3, **more: object) -> Schema:
    """An array with at most so many items."""
    return {"type": "array", "items": items, "maxItems": most, **more}


def nullable(schema: Schema) -> Schema:
    """As pydantic writes an optional value."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*values: object) -> Schema:
    """One of these values."""
    return {"enum": list(values)}


_ADDRESS = closed(street=TEXT, city=TEXT, zip={"type": "string", "pattern": "^[0-9]{5}$"})
_NODE = closed(
    value={"type": "integer", "minimum": 0, "maximum": 9},
    children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
)
_EXPRESSION = {
    "anyOf": [
        closed(op=one_of("+", "-"), left={"$ref": "#/$defs/leaf"}, right={"$ref": "#/$defs/expression"}),
        {"$ref": "#/$defs/leaf"},
    ]
}

APPLICATIONS: dict[str, Schema] = {
    "calendar event": closed(name=TEXT, date={"type": "string", "format": "date"}, participants=list_of(TEXT)),
    "union of objects": closed(
        item={
            "anyOf": [
                closed(kind={"const": "user"}, age={"type": "integer", "minimum": 0, "maximum": 150}),
                closed(kind={"const": "address"}, zip={"type": "string", "pattern": "^[0-9]{5}$"}),
            ]
        }
    ),
    "recursive tree": {"$defs": {"node": _NODE}, "$ref": "#/$defs/node"},
    "discriminated union": {
        "oneOf": [closed(kind={"const": kind}, size=one_of("small", "large")) for kind in ("cat", "dog")]
    },
    "map": {"type": "object", "additionalProperties": {"type": "integer", "maximum": 99}, "maxProperties": 2},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 5}, "b": {"type": "boolean"}}, "additionalProperties": False},
        ]
    },
    "person": closed(first_name=TEXT, last_name=TEXT, age=COUNT, email={"type": "string", "format": "email"}),
    "person with optional parts": closed(["name"], name=TEXT, nickname=nullable(TEXT), age=nullable(COUNT)),
    "address book": closed(people=list_of(closed(name=TEXT, address=_ADDRESS), 2)),
    "definitions of draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"address": _ADDRESS},
        **closed(home={"$ref": "#/definitions/address"}, work={"$ref": "#/definitions/address"}),
    },
    "pydantic model": {
        "$defs": {
            "Size": {"enum": ["small", "large"], "title": "Size", "type": "string"},
            "City": {
                "properties": {
                    "name": {"title": "Name", "type": "string", "maxLength": 12},
                    "size": {"$ref": "#/$defs/Size"},
                },
                "required": ["name", "size"],
                "title": "City",
                "type": "object",
            },
        },
        "properties": {
            "cities": {"items": {"$ref": "#/$defs/City"}, "title": "Cities", "type": "array", "maxItems": 2},
            "total": {"default": 0, "title": "Total", "type": "integer"},
        },
        "required": ["cities"],
        "title": "Cities",
        "type": "object",
    },
    "strict function of OpenAI": {
        **closed(location=TEXT, unit={"type": "string", "enum": ["celsius", "fahrenheit"], "description": "The unit"}),
        "description": "Where, and in what",
    },
    "steps of a solution": closed(steps=list_of(closed(explanation=TEXT, output=TEXT), 2), final_answer=TEXT),
    "classification": closed(label=one_of("positive", "negative", "neutral"), confidence={"type": "number"}),
    "classification with bounds": closed(label=one_of("a", "b"), score={"type": "number", "minimum": 0, "maximum": 1}),
    "labels of a text": list_of(one_of("red", "green", "blue"), 4, minItems=1),
    "moderation": closed(flagged=FLAG, categories=closed(hate=FLAG, violence=FLAG, spam=FLAG)),
    "invoice": closed(
        number={"type": "string", "pattern": "^INV-[0-9]{4}$"},
        date={"type": "string", "format": "date"},
        lines=list_of(closed(text=TEXT, amount={"type": "number", "minimum": 0, "maximum": 1000}), 2, minItems=1),
        currency=one_of("EUR", "USD"),
    ),
    "search query": closed(["query"], query=TEXT, page=COUNT, filters=list_of(closed(field=TEXT, value=TEXT), 2)),
    "entities": closed(entities=list_of(closed(text=TEXT, type=one_of("person", "place"), start=COUNT, end=COUNT), 2)),
    "chat message": closed(role=one_of("user", "assistant"), content={"anyOf": [TEXT, list_of(closed(text=TEXT), 2)]}),
    "event with a time": closed(id={"type": "string", "format": "uuid"}, at={"type": "string", "format": "date-time"}),
    "server": closed(
        host={"type": "string", "format": "ipv4"}, port={"type": "integer", "minimum": 1, "maximum": 65535}
    ),
    "colour": closed(hex={"type": "string", "pattern": "^#[0-9a-f]{6}$"}, alpha={"type": "number", "minimum": 0}),
    "matrix": list_of(list_of({"type": "integer", "minimum": -9, "maximum": 9}, 2, minItems=2), 2, minItems=2),
    "point": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "items": False, "minItems": 2},
    "geometry": {
        "oneOf": [
            closed(type={"const": "Point"}, coordinates=list_of({"type": "number"}, 2, minItems=2)),
            closed(type={"const": "Circle"}, radius={"type": "number", "exclusiveMinimum": 0}),
        ]
    },
    "linked list": {
        "$defs": {"cell": closed(head=COUNT, tail=nullable({"$ref": "#/$defs/cell"}))},
        "$ref": "#/$defs/cell",
    },
    "expression": {"$defs": {"leaf": closed(n=COUNT), "expression": _EXPRESSION}, "$ref": "#/$defs/expression"},
    "settings": closed([], theme=one_of("dark", "light"), size=COUNT, wrap=FLAG, font=TEXT),
    "settings, open": {"type": "object", "properties": {"theme": one_of("dark"), "size": COUNT}, "required": ["size"]},
    "translations": {"type": "object", "patternProperties": {"^[a-z]{2}$": TEXT}, "additionalProperties": False},
    "scores by name": {"type": "object", "additionalProperties": {"type": "number"}, "minProperties": 1},
    "table row": {"type": "array", "prefixItems": [COUNT, TEXT, FLAG], "minItems": 3, "maxItems": 3},
    "yes or no": one_of("yes", "no"),
    "one number": {"type": "integer", "minimum": 1, "maximum": 5},
    "one text": {"type": "string", "minLength": 3, "maxLength": 12},
    "any object": {"type": "object"},
    "anything": {},
    "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    "phone": {"type": "string", "pattern": r"^\+?[1-9][0-9]{6,14}$"},
    "deep": closed(a=closed(b=closed(c=closed(d=closed(e=closed(f=FLAG)))))),
    "wide": closed(**{f"field_{number}": FLAG for number in range(24)}),
    "wide and optional": closed([], **{f"field_{number}": COUNT for number in range(12)}),
}
"""Schemas by name. All are served."""
