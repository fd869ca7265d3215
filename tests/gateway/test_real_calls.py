"""Calls and answers with a form, from a real model that knows neither: at a high temperature, what comes is valid."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI
from pydantic import BaseModel, Field

from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}}
USER: Any = [{"role": "user", "content": "What is the weather in Ulm?"}]


class City(BaseModel):
    name: str = Field(max_length=12)
    size: Literal["small", "large"]


@pytest.fixture(scope="module")
def gateway(real_server: TritonServer) -> Iterator[GatewayProcess]:
    with GatewayProcess(real_server.grpc_url) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[OpenAI]:
    with gateway.openai() as client:
        yield client


def chat(client: OpenAI, **fields: Any) -> Any:
    defaults = {"model": "llm", "messages": USER, "temperature": 1.5, "max_tokens": 96, "seed": 1}
    return client.chat.completions.create(**{**defaults, **fields})


def test_calls_in_every_way_of_choosing(client: OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        (answer,) = chat(client, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False).choices
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        (call,) = answer.message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_calls_and_their_results_make_a_conversation(client: OpenAI) -> None:
    answer = chat(client, tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "It rains."}
    (after,) = chat(client, messages=[*USER, answer, result], tools=[TOOL], tool_choice="none", max_tokens=8).choices
    assert after.message.tool_calls is None
    assert after.message.content


def test_32_streams_of_calls_at_once(gateway: GatewayProcess) -> None:
    async def arguments(seed: int) -> str:
        stream = await client.chat.completions.create(
            model="llm",
            messages=USER,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=1.5,
            seed=seed,
            max_tokens=96,
            stream=True,
        )
        calls = [call async for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
        return "".join(call.function.arguments or "" for call in calls if call.function)

    async def all_of_them() -> list[str]:
        async with client:
            return await asyncio.gather(*map(arguments, range(32)))

    client = gateway.async_openai()
    for written in asyncio.run(all_of_them()):
        jsonschema.validate(json.loads(written), SCHEMA)


def test_answers_are_parsed_in_both_apis(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="llm", messages=USER, response_format=City, temperature=1.5, seed=1, max_tokens=64
    )
    assert isinstance(answer.choices[0].message.parsed, City)
    response = client.responses.parse(
        model="llm", input="A city?", text_format=City, temperature=1.5, max_output_tokens=64
    )
    assert isinstance(response.output_parsed, City)
    with client.responses.stream(model="llm", input="A city?", text_format=City, max_output_tokens=64) as stream:
        assert isinstance(stream.get_final_response().output_parsed, City)


def test_messages_with_the_client_of_anthropic(gateway: GatewayProcess) -> None:
    tools: Any = [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}]
    fields: Any = {"model": "llm", "tools": tools}
    with Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        any_tool: Any = {"type": "any", "disable_parallel_tool_use": True}
        message = client.messages.create(
            **fields, messages=USER, tool_choice=any_tool, max_tokens=96, extra_body={"temperature": 1.5}
        )
        (call,) = message.content
        assert call.type == "tool_use"
        jsonschema.validate(call.input, SCHEMA)
        assert message.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "It rains."}
        turns: Any = [*USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        after = client.messages.create(
            **fields,
            messages=turns,
            tool_choice={"type": "none"},
            max_tokens=20,
            stop_sequences=[" "],
            extra_body={"temperature": 0},
        )
        assert (after.stop_reason, after.stop_sequence) == ("stop_sequence", " ")
        again = client.messages.create(**fields, messages=turns, tool_choice={"type": "none"}, max_tokens=1)
        counted = client.messages.count_tokens(**fields, messages=turns, tool_choice={"type": "none"})
        usage = again.usage
        assert usage.cache_read_input_tokens
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


def test_a_form_under_another_name(client: OpenAI) -> None:
    text = (
        client.completions.create(model="llm", prompt="Rain?", extra_body={"guided_choice": ["yes", "no"]})
        .choices[0]
        .text
    )
    assert text in ("yes", "no")


def test_what_cannot_be_enforced_names_the_field(client: OpenAI) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": bad}}
    broken: Any = {"type": "function", "function": {"name": "weather", "parameters": bad}}
    for fields, param in (
        ({"response_format": form}, "response_format"),
        ({"tools": [broken], "tool_choice": "required"}, "tools"),
        ({"extra_body": {"regex": "(?=a)"}}, "regex"),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match=rf"(?s){param} is refused: .*look-around") as caught:
                chat(client, stream=stream, **fields)
            assert caught.value.param == param
    with pytest.raises(openai.BadRequestError, match="max_output_tokens is refused") as caught:
        client.responses.create(model="llm", input="a", max_output_tokens=100_000)
    assert caught.value.param == "max_output_tokens"


def test_tokens_of_a_chat_are_those_of_its_prompt(gateway: GatewayProcess, client: OpenAI) -> None:
    body = {"messages": USER, "tools": [TOOL], "return_token_strs": True}
    found = httpx.post(f"{gateway.url}/tokenize", json=body).json()
    assert found["count"] == chat(client, tools=[TOOL], max_tokens=1).usage.prompt_tokens == len(found["token_strs"])
    text = httpx.post(f"{gateway.url}/detokenize", json={"tokens": found["tokens"]}).json()["prompt"]
    assert "You are an expert in composing functions." in text
    assert text.endswith("Ulm?<|im_end|>\n<|im_start|>assistant\n")


def test_the_examples_of_the_documentation_run(real_server: TritonServer, gateway: GatewayProcess) -> None:
    page = (Path(__file__).parents[2] / "docs/structured-output.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 5
    names: dict[str, Any] = {"__name__": "examples"}
    for example in examples:  # Each goes on with the names of those before.
        example = example.replace("http://127.0.0.1:9000", gateway.url).replace("127.0.0.1:8001", real_server.grpc_url)
        exec(compile(example, "docs/structured-output.md", "exec"), names)
    assert names["message"].tool_calls
