"""Each spelling of a constraint is read, and no constraint is dropped."""

import json
from typing import Any

import pytest

from inflight import InvalidRequest, StructuredOutputs
from serving.read_fields import read_fields
from serving.structured_output_fields import structured_outputs

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": json.dumps({"json": SCHEMA})}, {"json": SCHEMA}),
        ({"structured_outputs": b'{"choice": ["a", "b"]}'}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"json": SCHEMA, "regex": None, "_backend": None, "x": False}}, {"json": SCHEMA}),
        ({"guided_decoding": json.dumps({"regex": "a+", "backend": None})}, {"regex": "a+"}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_choice": "a"}, {"choice": ["a"]}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            {"json": SCHEMA},
        ),
        ({"response_format": TAG}, {"structural_tag": TAG}),
        ({"guided_decoding_guide_type": "json"}, {"json_object": True}),
        (
            {"guided_decoding_guide_type": b"json_schema", "guided_decoding_guide": json.dumps(SCHEMA)},
            {"json": json.dumps(SCHEMA)},
        ),
        ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a+"}, {"regex": "a+"}),
        ({"guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": "x"}, {"grammar": "x"}),
    ],
)
def test_every_spelling(fields: dict[str, Any], expected: dict[str, Any] | None) -> None:
    wanted = None if expected is None else StructuredOutputs(**expected)
    assert structured_outputs(read_fields(fields)) == wanted


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"guided_regex": "a", "guided_json": SCHEMA}, "guided_json and guided_regex constrain the same output"),
        ({"structured_outputs": "[]"}, "structured_outputs is []; it must be a JSON object"),
        ({"structured_outputs": "{"}, "structured_outputs is '{'; it must be valid JSON"),
        ({"structured_outputs": {"backend": "x"}}, "structured_outputs has the key 'backend'; it must have only"),
        ({"response_format": "json"}, "response_format is 'json'; it must be valid JSON"),
        ({"response_format": {"type": "yaml"}}, "response_format.type is 'yaml'; it must be text, json_object,"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema is missing"),
        # The schema where its wrapper belongs.
        ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, "response_format.json_schema.schema is"),
        ({"guided_decoding_guide_type": "xml"}, "guided_decoding_guide_type is 'xml'; it must be json or one of"),
        (
            {"guided_decoding_guide_type": "regex"},
            "guided_decoding_guide_type is 'regex', but guided_decoding_guide is",
        ),
        ({"guided_decoding_guide": "a"}, "guided_decoding_guide is given without guided_decoding_guide_type"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        structured_outputs(read_fields(fields))
    assert str(refused.value).startswith(message)
