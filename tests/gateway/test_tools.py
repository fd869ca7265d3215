"""Chats with tools, with OpenAI's own client. The echo model writes what the last message says."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import BadRequestError, OpenAI

from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_chat import arrived

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **fields}}


TOOLS: Any = [tool("weather", description="Tells the weather."), tool("now")]
CALL = '<tool_call> {"name": "weather", "arguments": {"city": "Ulm"}} </tool_call>'


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_calls_of_a_whole_answer(client: OpenAI) -> None:
    messages = user(f"Well. {CALL} {CALL.replace('weather', 'now')}")
    answer = client.chat.completions.create(model="llm", messages=messages, tools=TOOLS)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Well.")
    calls = choice.message.tool_calls or []
    functions = [(call.function.name, call.function.arguments) for call in calls if call.type == "function"]
    assert functions == [("weather", '{"city": "Ulm"}'), ("now", '{"city": "Ulm"}')]
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") for call in calls)


def test_calls_of_a_stream_come_piece_by_piece(client: OpenAI) -> None:
    messages = user('Well. <tool_call> {"name": "weather", "arguments": {"city": "Neu Ulm"}} </tool_call>')
    with client.chat.completions.create(model="llm", messages=messages, tools=TOOLS, stream=True) as stream:
        choices = [chunk.choices[0] for chunk in stream]
    assert [choice.delta.content for choice in choices if choice.delta.content] == ["Well."]
    calls = [call for choice in choices for call in choice.delta.tool_calls or []]
    assert calls[0].id is not None
    assert [(call.index, call.type, call.function and call.function.name) for call in calls] == [
        (0, "function", "weather"),
        *[(0, None, None)] * (len(calls) - 1),
    ]
    pieces = [call.function.arguments for call in calls if call.function]
    assert pieces == ["", '{"city": ', '"Neu ', 'Ulm"}']
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["tool_calls"]


def test_the_streaming_helper_of_openai_collects_calls(client: OpenAI) -> None:
    with client.chat.completions.stream(model="llm", messages=user(CALL), tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = final.choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments) == {"city": "Ulm"}


def test_text_without_calls_is_an_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="llm", messages=user(" It rains. "), tools=TOOLS)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("It rains. ", "stop")
    assert answer.choices[0].message.tool_calls is None


def test_tools_reach_the_template(client: OpenAI) -> None:
    _, parameters = arrived(client, user("!request"), tools=TOOLS, parallel_tool_calls=True)
    assert [one["function"]["name"] for one in parameters["tools"]] == ["weather", "now"]
    assert parameters["tools"][0]["function"]["description"] == "Tells the weather."
    assert "structured_outputs" not in parameters
    _, parameters = arrived(client, user("!request"), tools=TOOLS, tool_choice="none")
    assert "tools" not in parameters


def test_a_conversation_with_calls_and_results_reaches_the_template(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="llm", messages=user(CALL), tools=TOOLS).choices[0].message
    (call,) = answer.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    messages, _ = arrived(client, [*user("a"), answer, result, *user("!request")], tools=TOOLS)
    function = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert messages[1:3] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call.id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]


def form(client: OpenAI, **fields: Any) -> dict[str, Any] | None:
    """The structural tag that the server got."""
    _, parameters = arrived(client, user("!request"), **{"tools": TOOLS, **fields})
    structured = parameters.get("structured_outputs")
    return structured and structured["structural_tag"]["format"]


def names(format: dict[str, Any]) -> list[str]:
    return [tag["begin"].split('"')[3] for tag in format["tags"]]


def test_what_a_choice_demands_is_enforced(client: OpenAI) -> None:
    required = form(client, tool_choice="required")
    assert required is not None
    assert (required["type"], required["at_least_one"], required["stop_after_first"]) == (
        "tags_with_separator",
        True,
        False,
    )
    assert names(required) == ["weather", "now"]
    assert required["tags"][0]["content"] == {"type": "json_schema", "json_schema": SCHEMA}
    named = form(client, tool_choice={"type": "function", "function": {"name": "now"}}, parallel_tool_calls=False)
    assert named is not None
    assert names(named) == ["now"]
    assert named["stop_after_first"]
    reference = {"type": "function", "function": {"name": "now"}}
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [reference]}}
    allowed = form(client, tool_choice=some)
    assert allowed is not None
    assert (allowed["type"], names(allowed)) == ("triggered_tags", ["now"])


def test_strict_tools_and_single_calls_are_enforced_where_the_model_may_choose(client: OpenAI) -> None:
    strict = form(client, tools=[tool("weather", strict=True), tool("now")])
    assert strict is not None
    assert (strict["type"], strict["triggers"], strict["stop_after_first"]) == (
        "triggered_tags",
        ["<tool_call>"],
        False,
    )
    contents = [tag["content"]["json_schema"] for tag in strict["tags"]]
    assert contents == [SCHEMA, {"type": "object"}]
    single = form(client, parallel_tool_calls=False)
    assert single is not None
    assert single["stop_after_first"]


def test_an_answer_with_a_form_may_still_be_a_call(client: OpenAI) -> None:
    answer = form(client, response_format={"type": "json_object"})
    assert answer is not None
    assert [one["type"] for one in answer["elements"]] == ["json_schema", "tags_with_separator"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "pattern"),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name", "another tool has too"),
        ({"tools": [tool("a", parameters=[])]}, "tools[0].function.parameters", "dictionary"),
        ({"tools": [TOOLS[0]] * 129}, "tools", "at most 128"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice", "'some'"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "names x; it must be one of weather, now",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice.type", "'custom'"),
        ({"functions": []}, "functions", "not supported"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id", "missing"),
        ({"messages": [{"role": "user", "tool_call_id": "a", "content": "b"}]}, "messages[0].tool_call_id", "absent"),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].content", "missing"),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{"id": "a", "type": "function"}]}]},
            "messages[0].tool_calls[0].function",
            "missing",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name(gateway: GatewayProcess, fields: Any, param: str, message: str) -> None:
    response = httpx.post(f"{gateway.url}/v1/chat/completions", json={"model": "llm", "messages": user("a"), **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


@pytest.fixture(scope="module")
def mistral(server: TritonServer) -> Iterator[OpenAI]:
    with GatewayProcess(server.grpc_url, "--tool-format", "mistral") as gateway, gateway.openai() as client:
        gateway.wait_for(["/health"], 30)
        yield client


def test_a_format_can_be_named_and_its_special_tokens_show(mistral: OpenAI) -> None:
    text = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Ulm"}}]'
    (choice,) = mistral.chat.completions.create(model="llm", messages=user(text), tools=TOOLS).choices
    assert choice.finish_reason == "tool_calls"
    # The echo model has [TOOL_CALLS] as a special token.
    _, parameters = arrived(mistral, user("!request"), tools=TOOLS)
    assert parameters["skip_special_tokens"] is False
    assert "skip_special_tokens" not in arrived(mistral, user("!request"))[1]


def test_a_stop_token_does_not_show_because_special_tokens_do(mistral: OpenAI) -> None:
    asked: Any = {"model": "llm", "messages": user("one"), "extra_body": {"include_stop_str_in_output": True}}
    assert mistral.chat.completions.create(**asked).choices[0].message.content == "one "
    with pytest.raises(BadRequestError, match="it must be false or absent with tools or reasoning"):
        mistral.chat.completions.create(**asked, tools=TOOLS)


def test_ids_fit_the_template_of_mistral(mistral: OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "5"}
    messages, _ = arrived(mistral, [{"role": "assistant", "tool_calls": [call]}, answer, *user("!request")])
    (first,) = messages[0]["tool_calls"]
    assert first["id"] == messages[1]["tool_call_id"]
    assert len(first["id"]) == 9
    assert first["id"].isalnum()


def test_stop_at_a_length_is_told(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="llm", messages=user(CALL), tools=TOOLS, max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="llm", messages=user(CALL), tools=[tool("now", strict=True)], max_tokens=5)
