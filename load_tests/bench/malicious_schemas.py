"""Constraints that would cost much, if they were not refused or bounded."""

import json
from typing import Any


def _nested_one_of(depth: int, width: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for level in range(depth):
        schema = {"oneOf": [{"type": "object", "properties": {f"p{level}{i}": schema}} for i in range(width)]}
    return schema


def _product_of_unions(factors: int, terms: int) -> dict[str, Any]:
    return {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {"type": "string"}}} for j in range(terms)]}
            for i in range(factors)
        ]
    }


MALICIOUS: dict[str, dict[str, str]] = {
    "nested oneOf": {"guided_json": json.dumps(_nested_one_of(4, 4))},
    "product of unions": {"guided_json": json.dumps(_product_of_unions(6, 6))},
    "huge enum": {"guided_json": json.dumps({"enum": [f"value {i}" for i in range(20_000)]})},
    "1,500 optional properties": {
        "guided_json": json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}})
    },
    "deep nesting": {"guided_json": '{"items":' * 5000 + "{}" + "}" * 5000},
    "exponential expression": {"guided_regex": "(.*a.{500}b.*c.{500}d)+"},
    "nested repetition": {"guided_regex": "((a{1,100}){1,100}){1,100}"},
    "ambiguous grammar": {"guided_grammar": 'start: a\na: a a | "x" | "xx" |'},
}
"""Request fields by what is bad about them."""
