"""POST /v1/messages with Anthropic's own client. The echo model writes what the last message says."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic, BadRequestError, beta_tool

from inflight_client import ModelDescription
from inflight_gateway.errors import ApiError
from inflight_gateway.formats import Formats
from inflight_gateway.messages_api.request import Metadata, OutputConfig, Thinking
from inflight_gateway.messages_api.thinking import effort_variables, thinking_variables
from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_keys import guarded
from tests.gateway.test_tools import CALL, SCHEMA

__all__ = ["guarded"]

TOOL: Any = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def client_of(gateway: GatewayProcess, api_key: str = "none") -> Anthropic:
    return Anthropic(base_url=gateway.url, api_key=api_key, max_retries=0)


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[Anthropic]:
    with client_of(gateway) as client:
        yield client


@pytest.fixture(scope="module")
def thinker(server: TritonServer) -> Iterator[Anthropic]:
    """A client of a gateway whose model may think."""
    with GatewayProcess(server.grpc_url, "--reasoning-format", "think") as gateway, client_of(gateway) as client:
        gateway.wait_for(["/health"], 30)
        yield client


def text_of(message: Any) -> str:
    (block,) = message.content
    assert block.type == "text"
    return str(block.text)


def arrived(client: Anthropic, messages: list[Any], **fields: Any) -> tuple[Any, dict[str, Any]]:
    """Return the messages and the sampling parameters that the server received."""
    request = json.loads(text_of(client.messages.create(model="llm", max_tokens=999, messages=messages, **fields)))
    return json.loads(request["messages"]), json.loads(request["sampling_parameters"])


def test_text(client: Anthropic) -> None:
    message = client.messages.create(model="llm", max_tokens=99, system="Be brief.", messages=user("one two"))
    assert (message.type, message.role, message.model, text_of(message)) == ("message", "assistant", "llm", "one two ")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens, message.usage.cache_read_input_tokens) == (2, 2, 0)
    assert message.id.startswith("msg_")


def test_max_tokens(client: Anthropic) -> None:
    message = client.messages.create(model="llm", max_tokens=1, messages=user("one two"))
    assert (text_of(message), message.stop_reason) == ("one ", "max_tokens")


def test_events_of_text(client: Anthropic) -> None:
    stream = client.messages.create(model="llm", max_tokens=99, messages=user("one two"), stream=True)
    events = list(stream)
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [event.delta.text for event in events if event.type == "content_block_delta"] == ["one ", "two "]


def test_the_streaming_helper_of_anthropic(client: Anthropic) -> None:
    with client.messages.stream(model="llm", max_tokens=99, messages=user("one two")) as stream:
        assert "".join(stream.text_stream) == "one two "
        message = stream.get_final_message()
    assert (text_of(message), message.stop_reason) == ("one two ", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (2, 2)


@pytest.mark.parametrize("stream", [False, True])
def test_calls(client: Anthropic, stream: bool) -> None:
    fields: Any = {"model": "llm", "max_tokens": 99, "messages": user(f"Well. {CALL}"), "tools": [TOOL]}
    if stream:
        with client.messages.stream(**fields) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**fields)
    text, call = message.content
    assert text.type == "text"
    assert call.type == "tool_use"
    assert (text.text, call.name, call.input) == ("Well.", "weather", {"city": "Ulm"})
    assert call.id.startswith("toolu_")
    assert message.stop_reason == "tool_use"


def test_a_call_that_was_cut_off_holds_its_text(client: Anthropic) -> None:
    message = client.messages.create(model="llm", max_tokens=5, messages=user(CALL), tools=[TOOL])
    (call,) = message.content
    assert call.type == "tool_use"
    assert call.input.keys() == {"INVALID_JSON"}
    assert message.stop_reason == "max_tokens"


def test_a_conversation(client: Anthropic) -> None:
    answer = client.messages.create(model="llm", max_tokens=99, messages=user(f"I look. {CALL}"), tools=[TOOL])
    call = answer.content[1]
    assert call.type == "tool_use"
    cached = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "And in Ulm?", **cached}, {"type": "text", "text": "Say."}],
        },
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "So.", "signature": ""}, *answer.content]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "!request"},
            ],
        },
    ]
    system: Any = [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief.", **cached}]
    # Vercel's AI SDK asks for what is always the case.
    tool: Any = {**TOOL, "eager_input_streaming": True}
    received, _ = arrived(client, messages, system=system, tools=[tool])
    function = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert received == [
        {"role": "system", "content": "Be kind.\nBe brief."},
        {"role": "user", "content": "And in Ulm?\nSay."},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "So.",
            "tool_calls": [{"id": call.id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        {"role": "user", "content": "!request"},
    ]


def test_sampling(client: Anthropic) -> None:
    body = {"temperature": 0.5, "top_p": 0.9, "top_k": 7}  # Newer clients have no arguments for them.
    _, parameters = arrived(
        client, user("!request"), stop_sequences=["zzz"], metadata={"user_id": "u"}, extra_body=body
    )
    wanted = {**body, "stop": ["zzz"], "tenant": "u", "max_tokens": 999}
    assert {name: parameters[name] for name in wanted} == wanted


def test_what_claude_code_sends(client: Anthropic) -> None:
    """Its bill would keep other conversations from the cached prefix, and each of its sessions has its own user."""
    bill = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.c30; cc_entrypoint=cli;"}
    body = {
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": '{"device_id": "d", "account_uuid": "", "session_id": "s"}'},
        "system": [bill, {"type": "text", "text": "Be brief."}],
    }
    turns = [*user("one"), {"role": "system", "content": "Use tools."}, {"role": "assistant", "content": "two"}]
    messages, parameters = arrived(client, [*turns, *user("!request")], extra_body=body)
    assert messages == [{"role": "system", "content": "Be brief."}, *turns, *user("!request")]
    assert parameters["tenant"] == "d"


@pytest.mark.parametrize("user_id", ["u", "{}", "[1]", '{"device_id": 1}', '{"device_id": ""}', "1", "[" * 256])
def test_other_users_are_tenants_by_their_whole_name(user_id: str) -> None:
    assert Metadata(user_id=user_id).tenant == user_id


def test_the_effort_is_for_templates_that_know_levels() -> None:
    knows, other = (
        Formats.of(ModelDescription("llm", 9, 9, None, names, {}, ()), "hermes", "none")
        for names in (("reasoning_effort",), ())
    )
    efforts = {effort: effort_variables(OutputConfig(effort=effort), knows) for effort in ("low", "max")}
    assert efforts == {"low": {"reasoning_effort": "low"}, "max": {"reasoning_effort": "xhigh"}}
    assert effort_variables(OutputConfig(effort="low"), other) == effort_variables(None, knows) == {}


@pytest.mark.parametrize(("strict", "enforced"), [(None, False), (False, False), (True, True)])
def test_tools_are_strict_if_they_say_so(client: Anthropic, strict: bool | None, enforced: bool) -> None:
    tool = TOOL if strict is None else {**TOOL, "strict": strict}
    _, parameters = arrived(client, user("!request"), tools=[tool])
    assert ("structured_outputs" in parameters) == enforced


@pytest.mark.parametrize(
    ("choice", "kind"),
    [({"type": "any"}, "required"), ({"type": "tool", "name": "weather"}, "required"), ({"type": "none"}, None)],
)
def test_tool_choice(client: Anthropic, choice: Any, kind: str | None) -> None:
    _, parameters = arrived(client, user("!request"), tools=[TOOL], tool_choice=choice)
    assert ("structured_outputs" in parameters) == (kind is not None)


def test_output_format(client: Anthropic) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    _, parameters = arrived(client, user("!request"), extra_body={"output_config": config})
    assert parameters["structured_outputs"] == {"json": SCHEMA}


def test_the_answer_continues_a_last_message_of_the_assistant(client: Anthropic) -> None:
    messages = [*user("one"), {"role": "assistant", "content": "two three"}]
    assert text_of(client.messages.create(model="llm", max_tokens=99, messages=messages)) == "two three "


def test_count_tokens(client: Anthropic, gateway: GatewayProcess) -> None:
    body = {"messages": [{"role": "system", "content": "Be brief."}, *user("one two three")]}
    wanted = httpx.post(f"{gateway.url}/tokenize", json=body).json()["count"]
    counted = client.messages.count_tokens(model="llm", system="Be brief.", messages=user("one two three"))
    assert counted.input_tokens == wanted


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts(thinker: Anthropic, stream: bool) -> None:
    fields: Any = {"model": "llm", "max_tokens": 99, "messages": user("<think> So. </think> Ulm.")}
    if stream:
        with thinker.messages.stream(**fields) as events:
            message = events.get_final_message()
    else:
        message = thinker.messages.create(**fields)
    thought, text = message.content
    assert thought.type == "thinking"
    assert text.type == "text"
    assert (thought.thinking, text.text) == ("So.", "Ulm. ")


@pytest.mark.parametrize(("kind", "thinks"), [("enabled", True), ("adaptive", True), ("disabled", False)])
def test_thinking_is_turned_on_and_off(client: Anthropic, kind: str, thinks: bool) -> None:
    _, parameters = arrived(client, user("!request"), extra_body={"thinking": {"type": kind}})
    assert parameters["chat_template_kwargs"] == {"enable_thinking": thinks}


def test_thinking_that_cannot_be_turned_off() -> None:
    model = ModelDescription("llm", 9, 9, None, (), {}, ())
    thinker, other = (Formats.of(model, "hermes", name) for name in ("think", "none"))
    disabled = Thinking(type="disabled")
    assert thinking_variables(disabled, other) == thinking_variables(Thinking(type="adaptive"), thinker) == {}
    with pytest.raises(ApiError, match=r"thinking is disabled; .* cannot turn it off"):
        thinking_variables(disabled, thinker)


CALL_BLOCK = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
SERVER_FAILED = "the model's server failed; its log says why"
TEXT = {"type": "text", "text": "x"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "other"}, "model is 'other'; it must be llm"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": []}, r"messages is \[\]"),
        ({"messages": user("x") * 4097}, "messages is .* at most 4096 items"),
        ({"messages": [{"role": "user", "content": [TEXT] * 4097}]}, r"messages\[0\].content is .* at most 4096 items"),
        ({"system": [TEXT] * 4097}, "system is .* at most 4096 items"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\] is .*'user', 'assistant', 'system'"),
        ({"messages": [{"role": "system", "content": [IMAGE]}]}, r"messages\[0\].content\[0\]"),
        (
            {"extra_body": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}},
            r"context_management.edits\[0\].type is 'clear_tool_uses_20250919'",
        ),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, r"content\[0\].source.type is 'url'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, r"content\[0\].text is 5"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}]}, r"content\[0\].x is not"),
        ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call, but there are no tools"),
        ({"stop_sequences": [""]}, r"stop_sequences\[0\] is ''"),
        ({"extra_body": {"container": "x"}}, "container is not supported"),
        (
            {"messages": [*user("x"), {"role": "assistant", "content": [CALL_BLOCK]}]},
            "messages ends with calls; the results of the tools must follow",
        ),
    ],
)
def test_errors_name_the_field(client: Anthropic, fields: Any, message: str) -> None:
    with pytest.raises(anthropic.APIStatusError, match=message) as caught:
        client.messages.create(**{"model": "llm", "max_tokens": 9, "messages": user("one"), **fields})
    kind = "not_found_error" if "model" in fields else "invalid_request_error"
    assert caught.value.response.json()["error"]["type"] == kind


def test_errors_of_all_parts_have_the_form_of_anthropic(gateway: GatewayProcess, guarded: GatewayProcess) -> None:
    for response, kind in (
        (httpx.post(f"{gateway.url}/v1/messages", content="{"), "invalid_request_error"),
        (httpx.get(f"{gateway.url}/v1/messages"), "invalid_request_error"),
        (httpx.post(f"{gateway.url}/v1/messages/nothing"), "not_found_error"),
        (httpx.post(f"{guarded.url}/v1/messages"), "authentication_error"),
        (httpx.post(f"{gateway.url}/v1/messages", content=b"x" * (5 << 20)), "request_too_large"),
    ):
        document = response.json()
        assert document.keys() == {"type", "error"}
        assert (document["type"], document["error"]["type"]) == ("error", kind)


def test_an_error_within_a_stream(client: Anthropic) -> None:
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(model="llm", max_tokens=99, messages=user("one !error INTERNAL")) as stream,
    ):
        stream.get_final_message()
    assert caught.value.body == {"type": "error", "error": {"type": "api_error", "message": SERVER_FAILED}}


def test_keys(guarded: GatewayProcess) -> None:
    with client_of(guarded, "secret-a") as client:
        _, parameters = arrived(client, user("!request"), metadata={"user_id": "u"})
        assert (parameters["tenant"], parameters["priority"]) == ("a", 2)
    with (
        client_of(guarded, "wrong") as client,
        pytest.raises(anthropic.AuthenticationError, match="the API key is wrong"),
    ):
        client.messages.create(model="llm", max_tokens=9, messages=user("one"))


def test_the_tool_runner_of_anthropic_goes_on_without_threads(client: Anthropic) -> None:
    """It looks into `details` for what is not supported, and then sends whole conversations."""

    @beta_tool
    def weather(city: str) -> str:
        """How the weather is.

        Args:
            city: where.
        """
        return f"rain in {city}"

    (message,) = client.beta.messages.tool_runner(
        model="llm", max_tokens=8, tools=[weather], messages=user("Hello"), max_iterations=1
    )
    assert message.content
    with pytest.raises(BadRequestError, match="thread is not supported"):
        client.messages.create(
            model="llm", max_tokens=8, messages=user("Hello"), extra_body={"thread": {"type": "create"}}
        )


def test_fields_that_change_nothing(client: Anthropic) -> None:
    fields: Any = {
        "cache_control": {"type": "ephemeral"},
        "speed": "standard",
        "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
    }
    assert client.messages.create(model="llm", max_tokens=8, messages=user("Hello"), **fields).content
