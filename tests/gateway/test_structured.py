"""Fields that give an answer a form reach the server, under whichever of their names."""

import json
from typing import Any

import httpx
import pytest
from huggingface_hub import InferenceClient
from openai import OpenAI
from pydantic import BaseModel

from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_chat import arrived
from tests.gateway.test_tools import CALL, TOOLS, user

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMED = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "Ulm"}}
OLDER_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}
USER: Any = [{"role": "user", "content": "!request"}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": NAMED}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json": SCHEMA}),
        ({"response_format": TAG}, {"structural_tag": TAG}),
        ({"response_format": OLDER_TAG}, {"structural_tag": OLDER_TAG}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, {"json": SCHEMA}),
        (
            {"structured_outputs": {"regex": "a+", "whitespace_pattern": " "}},
            {"regex": "a+", "whitespace_pattern": " "},
        ),
        ({"structured_outputs": {"structural_tag": {"structures": []}}}, {"structural_tag": {"structures": []}}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": "start: /a+/"}, {"grammar": "start: /a+/"}),
        ({"json_schema": json.dumps(SCHEMA)}, {"json": SCHEMA}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"grammar": {"type": "json", "value": SCHEMA}}, {"json": SCHEMA}),
        ({"grammar": {"type": "regex", "value": "a+"}}, {"regex": "a+"}),
    ],
)
def test_a_form_reaches_the_server(client: OpenAI, fields: dict[str, Any], expected: object) -> None:
    _, parameters = arrived(client, USER, extra_body=fields)
    assert parameters.get("structured_outputs") == expected
    text = client.completions.create(model="llm", prompt="!request", extra_body=fields).choices[0].text
    assert json.loads(json.loads(text)["sampling_parameters"]).get("structured_outputs") == expected


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"response_format": {**NAMED, "type": "text"}}, "response_format.json_schema", "the type text has none"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, None, "schema is missing"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.format", "format is missing"),
        ({"response_format": {**TAG, "type": "text"}}, "response_format.format", "the type text has none"),
        ({"response_format": {"type": "text", "value": {}}}, "response_format.value", "the type text has none"),
        ({"response_format": {"type": "json_object", "value": 1}}, "response_format.value", "dictionary"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "the type text has none"),
        (
            {"response_format": {"type": "json_object", "schema": {}, "value": {}}},
            "response_format.schema",
            "given with response_format.value",
        ),
        ({"guided_json": "no"}, "guided_json", "an object, or text that holds one"),
        ({"guided_json": "[" * 100_000}, "guided_json", "an object, or text that holds one"),
        ({"guided_json": "[]"}, "guided_json", "dictionary"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "guided_regex is given with guided_json"),
        ({"response_format": NAMED, "regex": "a"}, "regex", "regex is given with response_format"),
        ({"structured_outputs": {}}, "structured_outputs", "has none; it must have exactly one of json"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs", "has regex, grammar"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "False"),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
            "it must be false or absent",
        ),
        ({"structured_outputs": {"yaml": "a"}}, "structured_outputs.yaml", "not supported"),
        ({"grammar": {"type": "regex", "value": {}}}, "grammar.value", "with the type regex it must be a text"),
    ],
)
def test_what_is_wrong_is_refused_by_name(gateway: GatewayProcess, fields: Any, param: str, message: str) -> None:
    response = httpx.post(f"{gateway.url}/v1/chat/completions", json={"model": "llm", "messages": USER, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == (param or "response_format.json_schema.schema")
    assert message in error["message"]


class City(BaseModel):
    city: str


def test_openai_parses_an_answer(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": '{"city": "Ulm"}'}]
    answer = client.chat.completions.parse(model="llm", messages=messages, response_format=City)
    assert answer.choices[0].message.parsed == City(city="Ulm")
    with client.chat.completions.stream(model="llm", messages=messages, response_format=City) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.parsed == City(city="Ulm")


def test_the_client_of_hugging_face_asks_for_a_schema_and_a_tool(gateway: GatewayProcess) -> None:
    """It sends TGI's form of a schema, and a choice of a tool without its type."""
    client: Any = InferenceClient(base_url=gateway.url)
    answer = client.chat_completion(USER, model="llm", response_format=NAMED)
    asked = json.loads(json.loads(answer.choices[0].message.content)["sampling_parameters"])
    assert asked["structured_outputs"] == {"json": SCHEMA}

    answer = client.chat_completion(user(CALL), model="llm", tools=TOOLS, tool_choice={"function": {"name": "weather"}})
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Ulm"})
