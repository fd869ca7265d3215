"""JSON schemas that would take minutes to compile are refused, each by its keyword and its bound."""

from typing import Any

import pytest

from inflight.errors import InvalidRequest
from inflight.guided_decoding.grammar_text import json_schema, lark_of


def texts(count: int) -> list[dict[str, Any]]:
    return [{"type": "string", "pattern": f".*{i}.*"} for i in range(count)]


def numbers(*divisors: float) -> list[dict[str, Any]]:
    return [{"type": "number", "multipleOf": divisor} for divisor in divisors]


def named(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": schema for i, schema in enumerate(schemas)}}


def constant(keys: int) -> dict[str, int]:
    return {f"k{i}": i for i in range(keys)}


CHAIN = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}", "pattern": f".*{i}.*"} for i in range(13)}
SAME_NAME = [named([schema]) for schema in texts(13)]
BY_PATTERN = {"type": "object", "patternProperties": {f"^a{i}$": {} for i in range(65)}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"allOf": texts(13)}, "json has 13 different patterns; it must have at most 12"),
        ({"allOf": SAME_NAME}, "json has 13 different patterns"),
        ({"$defs": CHAIN | {"d13": {"type": "string"}}, "$ref": "#/$defs/d0"}, "json has 13 different patterns"),
        ({"anyOf": texts(12), "pattern": "x"}, "json has 13 different patterns"),
        ({"allOf": [{"anyOf": texts(12)}], "pattern": "x"}, "json has 13 different patterns"),
        ({"anyOf": texts(13), "oneOf": texts(13)}, "json has 13 different patterns"),
        (BY_PATTERN, "json has 65 patternProperties; it must have at most 64"),
        (numbers(999983)[0], "json has multipleOf 999983; .* the sum of all different ones must be at most 100000"),
        (named(numbers(99991, 97)), "json has multipleOf 97, 99991; "),
        (numbers(1234.567)[0], "json has multipleOf 1234.567; "),
        ({"allOf": numbers(97, 101, 103)}, "json has multipleOf 97, 101, 103; .* the product of all different ones"),
        ({"$ref": "#/const", "const": numbers(999983)[0]}, "json has multipleOf 999983"),
        (named([{"properties": {"const": numbers(999983)[0]}}]), "json has multipleOf 999983"),
        ({"items": {"const": constant(1001)}}, "json has const and enum with 2002 keys and values .* at most 2000"),
        ({"enum": [constant(500), [constant(500)]]}, "json has const and enum with 2001 keys and values"),
        ({"anyOf": [{"const": [i] * 500} for i in range(5)]}, "json has const and enum with 2500 keys and values"),
        (named([{}] * 2501), "json has an object with 2501 properties; it must have at most 2500"),
    ],
)
def test_what_would_take_long_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{message}"):
        json_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        named(texts(100)),
        {"allOf": texts(1) * 100},
        {"allOf": texts(12)},
        {**named([{"allOf": [{"$ref": "#/$defs/a"}], "title": "x"}, *texts(13)]), "$defs": {"a": {"type": "string"}}},
        named([{"anyOf": texts(13)}, {"$ref": "#/$defs/a", "description": "x"}]),
        named(numbers(0.01, 1e-7, 1_000_000, 3_600_000, 86_400, 99) * 100),
        named([{"multipleOf": True}, {"multipleOf": "x"}]),
        {"const": constant(1000)},
        {"enum": [f"{i}" for i in range(4000)]},
        named([named([{}] * 2000), named([{}] * 2000)]),
    ],
)
def test_what_applications_need_is_taken(schema: dict[str, Any]) -> None:
    assert json_schema(schema)


def test_a_grammar_with_many_intersections_is_refused() -> None:
    def intersections(count: int) -> str:
        return "start: A\nA: " + " & ".join(["/a/"] * (count + 1))

    assert lark_of(intersections(64))
    with pytest.raises(InvalidRequest, match=r"^grammar has 65 times '&'; it must have it at most 64 times"):
        lark_of(intersections(65))
