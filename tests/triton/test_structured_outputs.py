"""Each spelling of a constraint reaches the engine, over gRPC tensors, parameters and HTTP, and in `completion`."""

import asyncio
import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

from load_tests.schemas.applications import APPLICATIONS
from load_tests.schemas.check import ask_all
from load_tests.schemas.keywords import KEYWORDS
from scripts.launch.triton_server import TritonServer
from tests.triton.nvidia_frontend import check_32_chats_at_once, vllm_form
from tests.triton.wire import Fields, ask, together

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
PATTERN = "[A-D]{2}-[0-9]{3}"
COMMON = {"text_input": "An example: ", "max_tokens": 48, "stream": True}
SPELLINGS: list[tuple[Fields, str]] = [
    ({"guided_json": json.dumps(SCHEMA)}, "json"),
    ({"structured_outputs": json.dumps({"json": SCHEMA})}, "json"),
    ({"sampling_parameters": json.dumps({"temperature": 1.5, "structured_outputs": {"json": SCHEMA}})}, "json"),
    # vllm_backend's own form: JSON in a text in JSON.
    ({"sampling_parameters": json.dumps({"structured_outputs": json.dumps({"regex": PATTERN})})}, "regex"),
    ({"response_format": json.dumps({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})}, "json"),
    ({"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(SCHEMA)}, "json"),
    ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": PATTERN}, "regex"),
    ({"guided_regex": PATTERN}, "regex"),
    ({"guided_choice": ["AB-123", "CD-456"]}, "regex"),
]


def check(kind: str, text: str) -> None:
    if kind == "json":
        jsonschema.validate(json.loads(text), SCHEMA)
    else:
        assert re.fullmatch(PATTERN, text)


def test_every_spelling_over_grpc_all_at_once(server: TritonServer) -> None:
    answers = together(
        server.grpc_url, lambda client: [ask(client, {**COMMON, **fields}) for fields, _ in SPELLINGS], timeout=120
    )
    for (_, kind), answer in zip(SPELLINGS, answers, strict=True):
        assert (answer.error, answer.finish_reason) == (None, "stop")
        check(kind, answer.text)


@pytest.mark.parametrize("model", ["llm", "completion"])
def test_over_http_with_a_decoded_object(server: TritonServer, model: str) -> None:
    body = {"text_input": "An example: ", "max_tokens": 48, "exclude_input_in_output": True}
    body["structured_outputs"] = json.dumps({"json": SCHEMA})
    answer = httpx.post(f"http://{server.http_url}/v2/models/{model}/generate", json=body, timeout=60, trust_env=False)
    check("json", answer.json()["text_output"])


@pytest.mark.slow
def test_answers_match_a_part_of_the_schemas_of_make_schemas(server: TritonServer) -> None:
    schemas = [*APPLICATIONS.values(), *KEYWORDS.values()][::8]
    found = asyncio.run(ask_all(server.grpc_url, schemas, samples=1, temperature=1.5, max_tokens=32))
    assert [outcome.wrong for outcome in found] == [[]] * len(schemas)
    assert sum(len(outcome.matching) for outcome in found) > len(schemas) / 3
    assert "" not in {outcome.refusal for outcome in found}


NESTED: dict[str, Any] = {"type": "string"}
for level in range(5):
    NESTED = {"oneOf": [{"type": "object", "properties": {f"p{level}{i}": NESTED}} for i in range(4)]}
REFUSED = [
    (
        {"guided_json": json.dumps({"uniqueItems": True})},
        'json cannot be enforced: Unimplemented keys: ["uniqueItems"]',
    ),
    ({"guided_json": json.dumps(NESTED)}, "json has"),
    ({"guided_json": json.dumps({"enum": [f"value {i}" for i in range(6000)]})}, "json has"),
    (
        {"guided_json": json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(2500)}})},
        "json is too complex: after a few tokens it exceeds a limit: ",
    ),
    ({"guided_regex": "(.*a.{500}b.*c.{500}d)+"}, "regex is too complex: after a few tokens it exceeds a limit: "),
    ({"guided_regex": "(.*a.{30}b)+"}, "regex is too complex: after a few tokens it exceeds a limit: "),
    ({"guided_regex": "(a|a"}, "regex cannot be enforced"),
    ({"guided_regex": "a(?=b)"}, "regex cannot be enforced"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex and guided_choice constrain the same output"),
]


def test_what_cannot_be_enforced_is_refused_and_hurts_nobody(server: TritonServer) -> None:
    requests = [{**COMMON, "ignore_eos": True}, *({**COMMON, **fields} for fields, _ in REFUSED)]
    neighbour, *refused = together(server.grpc_url, lambda client: [ask(client, fields) for fields in requests])
    assert (neighbour.error, neighbour.finish_reason) == (None, "length")
    for answer, (_, expected) in zip(refused, REFUSED, strict=True):
        assert answer.error is not None
        assert answer.error.startswith(expected)


def test_chats_of_nvidias_openai_frontend(server: TritonServer) -> None:
    check_32_chats_at_once(server.grpc_url, vllm_form)
