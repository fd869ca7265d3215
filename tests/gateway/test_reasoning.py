"""Thoughts are split from answers. The echo model writes what the last message says."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_tools import CALL, TOOLS, user

# vllm-router adds one of them to each chat.
AS_BY_DEFAULT = {"continue_final_message": False, "add_generation_prompt": True}
OPEN, CLOSED = ({"chat_template_kwargs": {"open": is_open}} for is_open in (True, False))


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[OpenAI]:
    with GatewayProcess(server.grpc_url, "--reasoning-format", "think") as gateway, gateway.openai() as client:
        gateway.wait_for(["/health"], 30)
        yield client


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("<think> So. </think> Ulm.", {}, ("So.", "Ulm. ")),
        ("So. </think> Ulm.", OPEN, ("So.", "Ulm. ")),
        ("So. </think> Ulm.", {**OPEN, **AS_BY_DEFAULT}, ("So.", "Ulm. ")),
        ("Ulm <think> Ulm", {}, (None, "Ulm <think> Ulm ")),
        ("So it goes on", OPEN, ("So it goes on ", "")),
        ("Ulm.", CLOSED, (None, "Ulm. ")),
        ("<think> </think> Ulm.", {}, (None, "Ulm. ")),
    ],
)
def test_thoughts_and_answers(client: OpenAI, text: str, fields: Any, expected: tuple[str | None, str]) -> None:
    answer = client.chat.completions.create(model="llm", messages=user(text), extra_body=fields)
    message = answer.choices[0].message
    assert (getattr(message, "reasoning_content", None), message.content) == expected
    stream = client.chat.completions.create(model="llm", messages=user(text), extra_body=fields, stream=True)
    deltas: list[Any] = [chunk.choices[0].delta for chunk in stream]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert (thought, "".join(delta.content or "" for delta in deltas)) == (expected[0] or "", expected[1])


def test_the_tenant_of_a_chat_takes_turns_where_it_is_tokenized(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="llm", messages=user("!tenant"), user="ann")
    assert answer.choices[0].message.content == "ann "
    assert client.responses.create(model="llm", input="!tenant", user="bob").output_text == "bob "
    asked = {"model": "llm", "messages": user("!tenant"), "max_tokens": 9, "metadata": {"user_id": "eve"}}
    assert client.post("/messages", body=asked, cast_to=dict[str, Any])["content"][0]["text"] == "eve "


def test_a_thought_also_has_the_name_that_vllm_gives_it(client: OpenAI) -> None:
    """Some clients read only one of the names. They may send back both."""
    asked: Any = {"model": "llm", "messages": user("<think> So. </think> Ulm.")}
    message = client.chat.completions.create(**asked).choices[0].message.model_dump()
    assert message["reasoning"] == message["reasoning_content"] == "So."
    deltas = [chunk.choices[0].delta.model_dump() for chunk in client.chat.completions.create(**asked, stream=True)]
    thoughts = [(delta["reasoning"], delta["reasoning_content"]) for delta in deltas if "reasoning" in delta]
    assert thoughts
    assert all(one == other for one, other in thoughts)
    answer = client.chat.completions.create(model="llm", messages=[*user("a"), message, *user("b")])
    assert answer.choices[0].message.content == "b "


def test_a_client_need_not_see_the_thought(client: OpenAI) -> None:
    """As in vLLM."""
    asked: Any = {"model": "llm", "messages": user("<think> So. </think> Ulm.")}
    asked["extra_body"] = {"include_reasoning": False}
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.content == "Ulm. "
    assert not message.model_extra
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
    assert not any(delta.model_extra for delta in deltas)
    assert "".join(delta.content or "" for delta in deltas) == "Ulm. "


@pytest.mark.parametrize("end", [{"continue_final_message": True}, {"add_generation_prompt": False}])
def test_what_the_client_wrote_last_begins_no_thought(client: OpenAI, end: Any) -> None:
    """The template would say that one has begun."""
    messages: list[Any] = [*user("one"), {"role": "assistant", "content": "Ulm."}]
    fields = {"chat_template_kwargs": {"open": True}, **end}
    message = client.chat.completions.create(model="llm", messages=messages, extra_body=fields).choices[0].message
    assert (message.content, getattr(message, "reasoning_content", None)) == ("Ulm. ", None)


def test_a_thought_cannot_be_continued(client: OpenAI) -> None:
    messages: list[Any] = [*user("one"), {"role": "assistant", "content": "<think> So"}]
    with pytest.raises(BadRequestError, match="have no <think> and </think>; give thoughts as reasoning_content"):
        client.chat.completions.create(model="llm", messages=messages, extra_body={"continue_final_message": True})


def test_calls_follow_a_thought(client: OpenAI) -> None:
    text = f"<think> Perhaps {CALL} or not. </think> {CALL}"
    (choice,) = client.chat.completions.create(model="llm", messages=user(text), tools=TOOLS).choices
    assert choice.message.model_dump()["reasoning_content"] == f"Perhaps {CALL} or not."
    assert len(choice.message.tool_calls or []) == 1
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")


def structured_outputs(client: OpenAI, **fields: Any) -> Any:
    """What the server got."""
    answer = client.chat.completions.create(model="llm", messages=user("!request"), **fields)
    message = answer.choices[0].message.model_dump()
    # The request names the end of a thought, which ends the thought here too.
    thought = message.get("reasoning_content")
    request = json.loads(f"{thought}</think>{message['content']}" if thought else message["content"])
    return json.loads(request["sampling_parameters"])["structured_outputs"]


def test_the_form_of_an_answer_begins_after_the_thought(client: OpenAI) -> None:
    whole = {"type": "json_schema", "json_schema": {"type": "object"}}
    asked: Any = {"response_format": {"type": "json_object"}}
    found = structured_outputs(client, **asked)["structural_tag"]["format"]
    assert found["type"] == "or"
    assert found["elements"][1] == whole
    thought, _, answer = found["elements"][0]["elements"]
    assert (thought["begin"], thought["end"], answer) == ("<think>", "</think>", whole)
    found = structured_outputs(client, **asked, extra_body=OPEN)["structural_tag"]["format"]
    thought, _, answer = found["elements"]
    assert (thought["begin"], thought["end"], answer) == ("", "</think>", whole)
    assert structured_outputs(client, **asked, extra_body=CLOSED) == {"json_object": True}


def test_thoughts_of_earlier_turns_reach_the_template(client: OpenAI) -> None:
    earlier: Any = {"role": "assistant", "content": "Ulm.", "reasoning_content": "So."}
    answer = client.chat.completions.create(model="llm", messages=[*user("a"), earlier, *user("b")])
    assert answer.choices[0].message.content == "b "


@pytest.fixture(scope="module")
def harmony(server: TritonServer) -> Iterator[OpenAI]:
    formats = ("--reasoning-format", "harmony", "--tool-format", "harmony")
    with GatewayProcess(server.grpc_url, *formats) as gateway, gateway.openai() as client:
        gateway.wait_for(["/health"], 30)
        yield client


@pytest.mark.parametrize(
    ("text", "tools", "expected"),
    [
        ("<|channel|>final<|message|>Ulm.", None, {"content": "Ulm. "}),
        (
            "<|channel|>analysis<|message|>So. <|end|><|start|>assistant<|channel|>final<|message|>Ulm.",
            None,
            {"reasoning_content": "So.", "content": "Ulm. "},
        ),
        (
            "<|channel|>analysis<|message|>So. <|end|><|start|>assistant<|channel|>commentary to=functions.weather "
            '<|constrain|>json<|message|>{"city":"Ulm"}',
            TOOLS,
            {"reasoning_content": "So.", "content": None, "name": "weather", "arguments": '{"city":"Ulm"}'},
        ),
    ],
)
def test_messages_of_harmony_are_thoughts_answers_and_calls(
    harmony: OpenAI, text: str, tools: Any, expected: dict[str, Any]
) -> None:
    asked = {"tools": tools} if tools else {}
    (choice,) = harmony.chat.completions.create(model="llm", messages=user(text), **asked).choices
    found = choice.message.model_dump(exclude_none=True)
    (function,) = [call["function"] for call in found.get("tool_calls", [])] or [{}]
    assert {"content": None, **found, **function}.items() >= expected.items()
    assert choice.finish_reason == ("tool_calls" if tools else "stop")
