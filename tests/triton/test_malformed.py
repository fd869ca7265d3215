"""Malformed requests get a message that names what is wrong, and hurt nobody."""

import json
from typing import Any

import httpx
import pytest

from scripts.triton_server import TritonServer
from tests.triton.wire import ask, one, together

PROMPT = {"text_input": "Hello"}

# Fields of the request, and what the message must say.
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of text_input, messages and input_ids"),
    ({"text_input": "a", "messages": "[]"}, "exactly one of text_input, messages and input_ids"),
    ({"text_input": ""}, "text_input is empty"),
    ({"text_input": "word " * 9000}, "must have at most"),
    ({"messages": "not json"}, "messages is not valid JSON"),
    ({"messages": "[]"}, "at least 1 message"),
    ({"messages": '[{"role": "user"}]'}, "messages[0].content"),
    ({"messages": '["hello"]'}, "messages[0] is 'hello'"),
    ({**PROMPT, "max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    ({**PROMPT, "max_tokens": -5}, "max_tokens is -5"),
    ({**PROMPT, "max_tokens": 100000}, "max_tokens is 100000"),
    ({**PROMPT, "max_tokens": 7000}, "KV cache"),
    ({**PROMPT, "temperature": -1.0}, "temperature is -1.0"),
    ({**PROMPT, "temperature": float("nan")}, "temperature is nan"),
    ({**PROMPT, "top_p": 0.0}, "top_p is 0.0; it must be over 0 and at most 1"),
    ({**PROMPT, "top_p": 1.5}, "top_p is 1.5"),
    ({**PROMPT, "top_k": -2}, "top_k is -2"),
    ({**PROMPT, "stop_words": [""]}, "stop holds an empty text"),
    ({**PROMPT, "stream": True, "exclude_input_in_output": False}, "exclude_input_in_output"),
    ({**PROMPT, "sampling_parameters": "{"}, "sampling_parameters is not valid JSON"),
    ({**PROMPT, "sampling_parameters": "[1]"}, "must be a JSON object"),
    ({**PROMPT, "sampling_parameters": '{"max_tokens": "many"}'}, "max_tokens is 'many'; it must be a whole number"),
    ({**PROMPT, "sampling_parameters": '{"temperature": true}'}, "temperature is True; it must be a number"),
    ({**PROMPT, "sampling_parameters": '{"min_tokens": 9, "max_tokens": 3}'}, "min_tokens is 9"),
    ({**PROMPT, "sampling_parameters": '{"stop": 3}'}, "stop is 3; it must be a text"),
    ({**PROMPT, "sampling_parameters": '{"stop_token_ids": [999999]}'}, "stop_token_ids holds token 999999"),
    ({**PROMPT, "sampling_parameters": '{"seed": -1}'}, "seed is -1"),
    ({"text_input": b"caf\xe9 latte"}, "text_input is not valid UTF-8: byte 3 is 0xe9"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_message_names_the_fault(server: TritonServer, fields: dict[str, Any], message: str) -> None:
    def make(client):  # type: ignore[no-untyped-def]
        good = ask(client, {"text_input": "One, two,", "stream": True, "max_tokens": 4})
        return [good, ask(client, fields)]

    good, bad = together(server.grpc_url, make)
    assert bad.error is not None
    assert message in bad.error
    assert good.error is None
    assert good.finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max_tokens": 5}, "exactly one of text_input, messages and input_ids"),
        ({"text_input": "a", "max_tokens": -1}, "max_tokens is -1"),
        ({"text_input": "a", "n": "x"}, "n is 'x'; it must be a whole number"),
        ({"text_input": "a", "sampling_parameters": json.dumps({"top_k": 1.5})}, "top_k is 1.5"),
    ],
)
def test_http_answers_400(server: TritonServer, body: dict[str, Any], message: str) -> None:
    reply = httpx.post(f"http://{server.http_url}/v2/models/llm/generate", json=body, timeout=60)
    assert reply.status_code == 400
    assert message in reply.json()["error"]


def test_server_is_well_after_all_this(server: TritonServer) -> None:
    assert one(server.grpc_url, text_input="One, two,", max_tokens=4).error is None
