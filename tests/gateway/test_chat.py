"""POST /v1/chat/completions with OpenAI's own client."""

import asyncio
import json
from typing import Any, cast

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.gateway.gateway_process import GatewayProcess

CALL: Any = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def arrived(client: OpenAI, messages: list[Any], **fields: Any) -> tuple[Any, dict[str, Any]]:
    """Return the messages and the sampling parameters that the server received."""
    answer = client.chat.completions.create(model="llm", messages=messages, **fields)
    request = json.loads(answer.choices[0].message.content or "")
    return json.loads(request["messages"]), json.loads(request["sampling_parameters"])


def test_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="llm", messages=[{"role": "user", "content": "one two"}])
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "one two ", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 2)


def test_stream_begins_with_the_role(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "one two"}]
    options: Any = {"include_usage": True}
    with client.chat.completions.create(model="llm", messages=messages, stream=True, stream_options=options) as stream:
        *chunks, last = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [(delta.role, delta.content) for delta in deltas] == [
        ("assistant", ""),
        (None, "one "),
        (None, "two "),
        (None, None),
    ]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 4


def test_asynchronous_client(gateway: GatewayProcess) -> None:
    async def text() -> str:
        async with gateway.async_openai() as client:
            messages: list[Any] = [{"role": "user", "content": "one two"}]
            stream = await client.chat.completions.create(model="llm", messages=messages, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(text()) == "one two "


def test_roles_and_parts(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "!req"}, {"type": "text", "text": "uest"}]
    messages, _ = arrived(
        client,
        [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi", "refusal": None},
            {"role": "user", "content": parts},
        ],
    )
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "!request"},
    ]


def test_marks_of_what_to_cache_change_nothing(client: OpenAI) -> None:
    # OpenAI has breakpoints. Clients of many providers, such as LiteLLM and Strands, send Anthropic's marks.
    anthropic: Any = {"cache_control": {"type": "ephemeral"}}
    breakpoint_: Any = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}
    parts = [{"type": "text", "text": "!req", **anthropic}, {"type": "text", "text": "uest", **breakpoint_}]
    tool = {"type": "function", "function": {"name": "add"}, **anthropic}
    asked = [{"role": "system", "content": "be brief", **anthropic}, {"role": "user", "content": parts}]
    options = {"mode": "explicit", "ttl": "30m"}
    messages, _ = arrived(client, asked, tools=[tool], tool_choice="none", prompt_cache_options=options)
    assert messages == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "!request"}]


def test_answer_can_be_sent_back(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "one"}]
    messages.append(client.chat.completions.create(model="llm", messages=messages).choices[0].message)
    echoed, _ = arrived(client, [*messages, {"role": "user", "content": "!request"}])
    assert echoed[1] == {"role": "assistant", "content": "one "}
    # All fields including nulls, as some programs store them.
    stored = messages[1].model_dump()
    assert arrived(client, [stored, {"role": "user", "content": "!request"}])[0][0]["content"] == "one "


def test_what_openais_parse_adds_can_be_sent_back(client: OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}", "parsed_arguments": {}}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "3"}
    answered = {"role": "assistant", "content": "4", "parsed": {"sum": 4}}
    echoed, _ = arrived(client, [called, result, answered, {"role": "user", "content": "!request"}])
    assert echoed[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}
    assert echoed[2] == {"role": "assistant", "content": "4"}


@pytest.mark.parametrize(
    "added",
    [
        {"role": "assistant", "refusal": None, "reasoning_content": "So.", "reasoning": "So.", "tool_calls": [CALL]},
        {"annotations": []},
    ],
)
def test_an_answer_as_openais_agents_for_javascript_send_it_back(client: OpenAI, added: dict[str, Any]) -> None:
    """The other fields of the message are in its text: those of a whole message, and those of a streamed one."""
    answered = {"role": "assistant", "content": [{"type": "text", "text": "one", **added}], "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "3"}
    echoed, _ = arrived(client, [answered, result, {"role": "user", "content": "!request"}])
    assert echoed[0] == {"role": "assistant", "content": "one", "tool_calls": [CALL]}


def test_null_means_absent_also_for_fields_that_are_not_supported(gateway: GatewayProcess) -> None:
    """Programs that write all fields of their library send such nulls, also in messages."""
    unsupported = {"reasoning_effort": None, "web_search_options": None, "functions": None, "moderation": None}
    message = {"role": "user", "content": "one", "refusal": None, "thinking_blocks": None}
    reply = httpx.post(
        f"{gateway.url}/v1/chat/completions", json={"model": "llm", "messages": [message], **unsupported}, timeout=60
    )
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == "one "


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"content": None, "refusal": "I won't."}, {"content": "I won't."}),
        ({"content": [{"type": "refusal", "refusal": "I won't."}]}, {"content": "I won't."}),
        ({"content": "No.", "refusal": ""}, {"content": "No."}),
        # An answer that ended while the model thought.
        ({"content": None, "reasoning_content": "Hm"}, {"content": "", "reasoning_content": "Hm"}),
        # By vLLM's name, which counts if both are given.
        ({"content": None, "reasoning": "Hm"}, {"content": "", "reasoning_content": "Hm"}),
        ({"content": None, "reasoning": "Hm", "reasoning_content": "So"}, {"content": "", "reasoning_content": "Hm"}),
    ],
)
def test_a_history_may_have_what_another_model_did_not_say(
    client: OpenAI, fields: dict[str, Any], sent: dict[str, str]
) -> None:
    messages, _ = arrived(client, [{"role": "assistant", **fields}, {"role": "user", "content": "!request"}])
    assert messages[0] == {"role": "assistant", **sent}


@pytest.mark.parametrize(
    "fields", [{"content": "a", "refusal": "no"}, {"content": [{"type": "refusal", "refusal": "no"}]}]
)
def test_only_the_assistant_refuses(client: OpenAI, fields: dict[str, Any]) -> None:
    message: Any = {"role": "user", **fields}
    with pytest.raises(BadRequestError, match="unless role is assistant"):
        client.chat.completions.create(model="llm", messages=[message])


def test_streamed_calls_can_be_sent_back_with_their_indexes(client: OpenAI) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "annotations": [], "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "3"}
    echoed, _ = arrived(client, [called, result, {"role": "user", "content": "!request"}])
    assert "index" not in echoed[0]["tool_calls"][0]


def test_a_stream_without_obfuscation_is_what_there_is(client: OpenAI) -> None:
    chunks = client.chat.completions.create(
        model="llm",
        messages=[{"role": "user", "content": "one two"}],
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
    )
    assert [chunk.usage for chunk in chunks][-1] is not None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"max_tokens": -1, "temperature": 1}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"max_completion_tokens": 6, "max_tokens": 6}, {"max_tokens": 6}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
        ({"stop": ["a", "b"], "seed": 1, "response_format": {"type": "text"}}, {"stop": ["a", "b"], "seed": 1}),
        ({"parallel_tool_calls": False, "store": False}, {}),
        ({"logprobs": False, "top_logprobs": 0, "prompt_cache_retention": "24h"}, {}),
    ],
)
def test_fields_reach_the_server(client: OpenAI, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    _, parameters = arrived(client, [{"role": "user", "content": "!request"}], **fields)
    assert {name: parameters[name] for name in expected} == expected


def test_an_answer_can_continue_the_last_message(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "!request"}]
    for end in ({"continue_final_message": True}, {"continue_final_message": True, "add_generation_prompt": False}):
        sent, parameters = arrived(client, messages, extra_body=end)
        assert sent == messages
        assert {name: parameters[name] for name in end} == end


def test_an_answer_has_its_tokens_if_they_are_asked_for(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "one three"}]
    answer = client.chat.completions.create(model="llm", messages=messages, extra_body={"return_token_ids": True})
    assert answer.choices[0].to_dict()["token_ids"] == [4, 6]
    assert answer.to_dict()["prompt_token_ids"] == [4, 6]


def test_a_streamed_answer_has_its_tokens_if_they_are_asked_for(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "one three"}]
    options: dict[str, Any] = {"model": "llm", "messages": messages, "extra_body": {"return_token_ids": True}}
    chunks = [chunk.to_dict() for chunk in client.chat.completions.create(**options, stream=True)]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[4, 6], *[None] * (len(chunks) - 1)]
    choices: list[Any] = [choice for chunk in chunks for choice in cast("list[Any]", chunk["choices"])]
    assert "token_ids" not in choices[0]  # The role alone.
    assert [token for choice in choices[1:] for token in choice["token_ids"]] == [4, 6]


def test_the_highest_effort_is_known(client: OpenAI) -> None:
    """vLLM takes it, for templates such as DeepSeek's."""
    with pytest.raises(BadRequestError, match="reasoning_effort is 'max'; it must be 'none' or absent, as the model"):
        client.chat.completions.create(
            model="llm", messages=[{"role": "user", "content": "one"}], extra_body={"reasoning_effort": "max"}
        )


def test_an_effort_that_the_template_does_not_know_is_refused(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "one"}]
    with pytest.raises(BadRequestError, match="reasoning_effort is 'low'; it must be 'none' or absent"):
        client.chat.completions.create(model="llm", messages=messages, reasoning_effort="low")
    with pytest.raises(BadRequestError, match=r"reasoning\.effort is 'low'; it must be 'none' or absent"):
        client.responses.create(model="llm", input="one", reasoning={"effort": "low"})


def test_an_effort_becomes_a_variable_of_the_template(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "!request"}]
    given = {"chat_template_kwargs": {"enable_thinking": True, "other": 1}}
    expected = {"enable_thinking": False, "other": 1}
    _, parameters = arrived(client, messages, reasoning_effort="none", extra_body=given)
    assert parameters["chat_template_kwargs"] == expected
    answer = client.responses.create(model="llm", input="!request", reasoning={"effort": "none"}, extra_body=given)
    assert json.loads(json.loads(answer.output_text)["sampling_parameters"])["chat_template_kwargs"] == expected
    assert answer.reasoning is not None
    assert answer.reasoning.effort == "none"


def test_calls_cannot_be_continued(client: OpenAI) -> None:
    called = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    last = {"role": "assistant", "content": "one", "tool_calls": called}
    messages: list[Any] = [{"role": "user", "content": "one"}, last]
    with pytest.raises(BadRequestError, match="the last message must be one of the assistant, without tool_calls"):
        client.chat.completions.create(model="llm", messages=messages, extra_body={"continue_final_message": True})


def test_a_prediction_is_a_hint_that_a_server_without_drafts_never_sees(client: OpenAI) -> None:
    prediction: Any = {"type": "content", "content": "one two three"}
    asked: Any = {"model": "llm", "messages": [{"role": "user", "content": "!request"}], "prediction": prediction}
    answer = client.chat.completions.create(**asked)
    assert "draft_input_ids" not in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (0, 0)


def test_what_clients_of_vllm_add_to_a_chat_changes_nothing(client: OpenAI) -> None:
    """The first fields were seen with vllm-router 0.1.17."""
    added = {
        **dict.fromkeys(["no_stop_trim", "ignore_eos", "continue_final_message", "return_hidden_states"], False),
        **dict.fromkeys(["skip_special_tokens", "separate_reasoning", "stream_reasoning", "include_reasoning"], True),
        # vLLM's defaults, which clients write out.
        **{"add_special_tokens": False, "echo": False, "spaces_between_special_tokens": True},
    }
    messages: list[Any] = [{"role": "user", "content": "one two"}]
    answer = client.chat.completions.create(model="llm", messages=messages, logprobs=False, extra_body=added)
    assert answer.choices[0].message.content == "one two "


@pytest.mark.parametrize(
    ("field", "value", "accepted"), [("no_stop_trim", True, "false"), ("separate_reasoning", False, "true")]
)
def test_other_values_of_these_fields_are_refused(client: OpenAI, field: str, value: bool, accepted: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "one"}]
    with pytest.raises(BadRequestError, match=f"{field} is {value}: it must be {accepted} or absent"):
        client.chat.completions.create(model="llm", messages=messages, extra_body={field: value})
