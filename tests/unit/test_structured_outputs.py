"""A constraint on the output is checked when it is made."""

from typing import Any

import pytest

from inflight import InvalidRequest, StructuredOutputs
from inflight.structured_outputs import MAX_CHARACTERS


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"json": {"type": "integer"}}, "json", '{"type": "integer"}'),
        ({"json": '{"type":"integer"}'}, "json", '{"type":"integer"}'),
        ({"json": True}, "json", "true"),
        ({"json_object": True}, "json_object", '{"type": "object"}'),
        ({"json_object": False, "regex": "a+"}, "regex", "a+"),
        ({"choice": ("yes", "no")}, "choice", '["yes", "no"]'),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"structural_tag": {"format": {"type": "any_text"}}}, "structural_tag", '{"format": {"type": "any_text"}}'),
    ],
)
def test_the_kind_and_its_text(given: dict[str, Any], kind: str, text: str) -> None:
    made = StructuredOutputs(**given)
    assert (made.kind, made.text) == (kind, text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "structured_outputs has no constraint; it must have exactly one of json, json_object,"),
        ({"json_object": False}, "structured_outputs has no constraint"),
        ({"json": {}, "regex": "a"}, "structured_outputs has json and regex; it must have exactly one of"),
        ({"json": 3}, "json is 3; it must be a JSON object"),
        ({"json": {"a": {1, 2}}}, "json cannot be written as JSON: "),
        ({"json_object": 1}, "json_object is 1; it must be true"),
        ({"regex": 3}, "regex is 3; it must be a text"),
        ({"regex": "a" * (MAX_CHARACTERS + 1)}, "regex has 65537 characters; it must have at most 65536"),
        ({"choice": []}, "choice is .*; it must be a list of at least 1 text"),
        ({"choice": "yes"}, "choice is 'yes'; it must be a list"),
        ({"choice": ["yes", 1]}, "choice is 1; it must be a text"),
        ({"choice": ["yes", ""]}, "choice holds an empty text"),
        ({"choice": ["a"] * 4097}, "choice has 4097 texts; it must have at most 4096"),
        ({"grammar": b"a"}, "grammar is b'a'; it must be a text"),
        ({"structural_tag": ["a"]}, "structural_tag is .* it must be a JSON object"),
        ({"json": {}, "whitespace_pattern": 3}, "whitespace_pattern is 3; it must be a text"),
        ({"json": {}, "whitespace_pattern": []}, r"whitespace_pattern is \[\]; it must be a text"),
        ({"json": {}, "whitespace_pattern": {}}, "whitespace_pattern is {}; it must be a text"),
        ({"json": {}, "whitespace_pattern": "\ud800"}, "whitespace_pattern is not valid Unicode"),
        ({"regex": "\ud800"}, "regex is not valid Unicode: it holds half of a surrogate pair"),
        ({"grammar": 'root ::= "\ud800"'}, "grammar is not valid Unicode"),
        ({"json": {}, "disable_any_whitespace": "no"}, "disable_any_whitespace is 'no'; it must be true or false"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{message}"):
        StructuredOutputs(**given)


def test_equal_constraints_are_one_key() -> None:
    first, second = StructuredOutputs(regex="a"), StructuredOutputs(regex="a")
    other = StructuredOutputs(json={}, whitespace_pattern=" ?")
    assert first == second
    assert len({first, second, other, StructuredOutputs(json={})}) == 3
