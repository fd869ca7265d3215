"""POST /v1/responses with OpenAI's own client. The echo model writes what the last message says."""

import json
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_tools import CALL, SCHEMA

TOOL: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": None}


class City(BaseModel):
    city: str


def arrived(client: OpenAI, **fields: Any) -> tuple[Any, dict[str, Any]]:
    """Return the messages and the sampling parameters that the server received."""
    response = client.responses.create(model="llm", **fields)
    request = json.loads(response.output_text)
    return json.loads(request["messages"]), json.loads(request["sampling_parameters"])


def test_text(client: OpenAI) -> None:
    response = client.responses.create(model="llm", input="one two", instructions="Be brief.")
    assert (response.object, response.status, response.output_text) == ("response", "completed", "one two ")
    assert response.id.startswith("resp_")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (2, 2, 4)
    assert (response.store, response.parallel_tool_calls, response.tool_choice) == (False, True, "auto")


def test_parsed_text(client: OpenAI) -> None:
    response = client.responses.parse(model="llm", input='{"city": "Ulm"}', text_format=City)
    assert response.output_parsed == City(city="Ulm")
    _, parameters = arrived(client, input="!request", text={"format": {"type": "json_object"}})
    assert parameters["structured_outputs"] == {"json_object": True}


def test_the_end_token_can_be_ignored(client: OpenAI) -> None:
    _, parameters = arrived(client, input="!request", extra_body={"ignore_eos": True, "stop": None})
    assert parameters["ignore_eos"] is True


def test_sampling_fields_of_vllm_reach_the_server(client: OpenAI) -> None:
    fields = {"top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    _, parameters = arrived(client, input="!request", extra_body={**fields, "seed": -1, "stop": "Ulm"})
    assert parameters.items() >= {**fields, "seed": 2**64 - 1, "stop": ["Ulm"]}.items()


def test_input_tokens_are_counted(client: OpenAI) -> None:
    """A token of the echo model is a character of the last message."""
    count = client.responses.input_tokens.count(model="llm", input="Where is Ulm?", instructions="Be brief.")
    assert (count.object, count.input_tokens) == ("response.input_tokens", 13)
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}
    messages: list[Any] = [{"role": "user", "content": [image]}]
    with pytest.raises(openai.BadRequestError, match="input has images, whose tokens are not known"):
        client.responses.input_tokens.count(model="llm", input=messages)


def test_events_of_text(client: OpenAI) -> None:
    with client.responses.create(model="llm", input="one two", stream=True) as stream:
        events = list(stream)
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["one ", "two "]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "one two "
    assert last.response.usage is not None


def test_the_streaming_helper_of_openai_parses(client: OpenAI) -> None:
    with client.responses.stream(model="llm", input='{"city": "Ulm"}', text_format=City) as stream:
        assert stream.get_final_response().output_parsed == City(city="Ulm")


def test_calls(client: OpenAI) -> None:
    response = client.responses.create(model="llm", input=f"Well. {CALL}", tools=[TOOL])
    message, call = response.output
    assert (message.type, response.output_text) == ("message", "Well.")
    assert call.type == "function_call"
    assert (call.name, call.arguments, call.status) == ("weather", '{"city": "Ulm"}', "completed")
    assert call.call_id.startswith("call_")
    assert response.tools[0].type == "function"


def test_events_of_calls(client: OpenAI) -> None:
    with client.responses.stream(model="llm", input=CALL, tools=[TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[2:-1] == [
        "response.output_item.added",
        *["response.function_call_arguments.delta"] * kinds.count("response.function_call_arguments.delta"),
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    (call,) = final.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Ulm"}


def test_a_call_that_openais_parse_has_added_to_can_be_sent_back(client: OpenAI) -> None:
    """As openai's package for JavaScript does it."""
    call: Any = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Ulm"}'}
    result: Any = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    asked: Any = {"role": "user", "content": "!request"}
    messages, _ = arrived(client, input=[{**call, "parsed_arguments": {"city": "Ulm"}}, result, asked], tools=[TOOL])
    assert messages[0]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Ulm"}'}


@pytest.mark.parametrize(
    ("content", "shown"),
    [({}, "In short."), ({"content": [{"type": "reasoning_text", "text": "At length."}]}, "At length.")],
)
def test_a_summary_stands_for_a_thought_that_is_not_sent(client: OpenAI, content: Any, shown: str) -> None:
    """As langchain for JavaScript sends thoughts, even if all it has is an empty one."""
    summary: Any = [{"type": "summary_text", "text": "In "}, {"type": "summary_text", "text": "short."}]
    thought: Any = {"type": "reasoning", "id": "rs_1", "summary": summary, **content}
    asked: Any = {"role": "user", "content": "!request"}
    messages, _ = arrived(client, input=[thought, {"role": "assistant", "content": "Ulm."}, asked])
    assert messages[0] == {"role": "assistant", "content": "Ulm.", "reasoning_content": shown}


def test_a_history_may_have_a_refusal(client: OpenAI) -> None:
    refusal: Any = {"type": "refusal", "refusal": "I won't."}
    asked: Any = {"role": "user", "content": "!request"}
    messages, _ = arrived(client, input=[{"role": "assistant", "content": [refusal]}, asked])
    assert messages[0] == {"role": "assistant", "content": "I won't."}
    with pytest.raises(openai.BadRequestError, match="no refusals unless role is assistant"):
        arrived(client, input=[{"role": "user", "content": [refusal]}, asked])


def test_a_reference_to_an_earlier_answer_says_what_to_do(client: OpenAI) -> None:
    """Vercel's AI SDK sends one unless `store` is false."""
    asked: Any = {"role": "user", "content": "one"}
    with pytest.raises(openai.BadRequestError, match=r"answers are not stored, .* if store is false") as refused:
        client.responses.create(model="llm", input=[{"type": "item_reference", "id": "msg_1"}, asked])
    assert refused.value.param == "input[0].type"


IN_NAMESPACE: Any = {"type": "namespace", "name": "town", "description": "A town.", "tools": [TOOL]}


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_in_a_namespace_is_called_by_both_names(client: OpenAI, stream: bool) -> None:
    """As Codex names them. The model sees one name."""
    asked: Any = {"model": "llm", "tools": [TOOL, IN_NAMESPACE]}
    said = CALL.replace('"weather"', '"town.weather"')
    if stream:
        with client.responses.stream(input=said, **asked) as events:
            response = events.get_final_response()
    else:
        response = client.responses.create(input=said, **asked)
    (call,) = response.output
    assert call.type == "function_call"
    assert (call.name, call.namespace, json.loads(call.arguments)) == ("weather", "town", {"city": "Ulm"})
    assert [tool.type for tool in response.tools] == ["function", "namespace"]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    turns: Any = [{"role": "user", "content": said}, call, result, {"role": "user", "content": "!request"}]
    request = json.loads(client.responses.create(input=turns, **asked).output_text)
    (made,) = json.loads(request["messages"])[1]["tool_calls"]
    assert made["function"]["name"] == "town.weather"
    assert [tool["function"]["name"] for tool in json.loads(request["sampling_parameters"])["tools"]] == [
        "weather",
        "town.weather",
    ]


def test_a_search_that_the_gateway_cannot_do_is_not_offered_to_the_model(client: OpenAI) -> None:
    """Codex offers it in each request."""
    tools: Any = [TOOL, {"type": "web_search", "external_web_access": False}]
    response = client.responses.create(model="llm", input="!request", tools=tools)
    (shown,) = json.loads(json.loads(response.output_text)["sampling_parameters"])["tools"]
    assert shown["function"]["name"] == "weather"
    assert [tool.type for tool in response.tools] == ["function"]


def test_a_conversation(client: OpenAI) -> None:
    response = client.responses.create(model="llm", input=CALL, tools=[TOOL])
    (call,) = response.output
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "And in Ulm?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "So."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        call,
        result,
        {"role": "user", "content": "!request"},
    ]
    messages, _ = arrived(client, input=items, instructions="Be kind.", tools=[TOOL])
    function = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert messages == [
        {"role": "system", "content": "Be kind.\n\nBe brief."},
        {"role": "user", "content": "And in Ulm?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "So.",
            "tool_calls": [{"id": call.call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "rain"},
        {"role": "user", "content": "!request"},
    ]


def test_tool_choices_and_limits_reach_the_server(client: OpenAI) -> None:
    choice: Any = {"type": "function", "name": "weather"}
    _, parameters = arrived(
        client, input="!request", tools=[TOOL], tool_choice=choice, max_output_tokens=7, top_p=0.5, temperature=0
    )
    assert {name: parameters[name] for name in ("max_tokens", "top_p", "temperature")} == {
        "max_tokens": 7,
        "top_p": 0.5,
        "temperature": 0,
    }
    form = parameters["structured_outputs"]["structural_tag"]["format"]
    assert (form["type"], len(form["tags"])) == ("tags_with_separator", 1)
    # Tools of this API are strict unless they say otherwise.
    assert "structured_outputs" in arrived(client, input="!request", tools=[TOOL])[1]
    assert "structured_outputs" not in arrived(client, input="!request", tools=[{**TOOL, "strict": False}])[1]


def test_an_answer_that_is_cut_off_is_incomplete(client: OpenAI) -> None:
    response = client.responses.create(model="llm", input="one two three", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    with client.responses.create(model="llm", input="one two three", max_output_tokens=2, stream=True) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


def test_failures(client: OpenAI) -> None:
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="llm", input="!error UNAVAILABLE", stream=True)
    with client.responses.create(model="llm", input="one !error INTERNAL", stream=True) as stream:
        assert next(iter(stream)).type == "response.created"
        with pytest.raises(openai.APIError, match="server failed"):
            list(stream)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": ""}, "input", "at least 1"),
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type", "'item_reference'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]},
            "input[0].content[0].image_url",
            "'a'; it must be a data URL",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not supported"),
        ({"store": True}, "store", "False"),
        ({"background": True}, "background", "False"),
        ({"conversation": "a"}, "conversation", "not supported"),
        ({"tools": [{"type": "file_search"}]}, "tools[0]", "'file_search'"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": []}]}, "tools[0].tools", "at least 1"),
        (
            {"tools": [{"type": "namespace", "name": "a", "tools": [TOOL, TOOL]}]},
            "tools[0].tools[1].name",
            "a.weather, which another tool has too",
        ),
        ({"tools": [TOOL, TOOL]}, "tools[1].name", "another tool has too"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", "knows no levels"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "missing"),
        ({"include": ["web_search_call.results"]}, "include[0]", "'reasoning.encrypted_content'"),
        ({"truncation": "auto"}, "truncation", "'auto'"),
        ({"n": 2}, "n", "not supported"),
    ],
)
def test_what_is_not_there_is_refused_by_name(gateway: GatewayProcess, fields: Any, param: str, message: str) -> None:
    response = httpx.post(f"{gateway.url}/v1/responses", json={"model": "llm", "input": "a", **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"] or message == "False"


def test_values_that_ask_for_nothing_are_taken(client: OpenAI) -> None:
    harmless: Any = {
        "store": False,
        "background": False,
        "truncation": "disabled",
        "include": [],
        "metadata": {"a": "b"},
    }
    codex: Any = {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
    codex["extra_body"] = {"client_metadata": {"session_id": "a"}}
    assert client.responses.create(model="llm", input="one", store=False, **codex).output_text == "one "
    more: Any = {"reasoning": {"effort": None}, "text": {"format": {"type": "text"}}, "prompt_cache_key": "a"}
    assert client.responses.create(model="llm", input="one", **harmless, **more).output_text == "one "
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    marked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "one", **mark}]}]
    options: Any = {"mode": "explicit", "ttl": "30m"}
    assert client.responses.create(model="llm", input=marked, prompt_cache_options=options).output_text == "one "


def test_the_usage_may_be_asked_for_as_in_chats(client: OpenAI) -> None:
    # NVIDIA's AIPerf does so. The last event has it in any case.
    options: Any = {"include_usage": True}
    with client.responses.create(model="llm", input="one two", stream=True, stream_options=options) as stream:
        *_, last = stream
    assert last.type == "response.completed"
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 2
