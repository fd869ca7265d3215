"""Every error has OpenAI's format, and a status that says which side caused it."""

import gzip
import re
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess

USER = [{"role": "user", "content": "one"}]
COMPLETION = "/v1/completions"
CHAT = "/v1/chat/completions"


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return dict(error)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": ""}, "prompt", "at least 1"),
        ({"prompt": []}, "prompt", "at least 1"),
        ({"prompt": ["a"] * 65}, "prompt", "at most 64"),
        ({"prompt": [1, "a"]}, "prompt[1]", "'a'"),
        ({"prompt": [-1]}, "prompt[0]", "-1.*greater than or equal to 0"),
        ({"prompt": [[1], [2**31]]}, "prompt[1][0]", "2147483648"),
        ({"prompt": {"text": "a"}}, "prompt", "string"),
        ({"max_tokens": 0}, "max_tokens", "0.*at least 1 unless echo"),
        ({"max_tokens": "5"}, "max_tokens", "'5'.*integer"),
        ({"temperature": 2.5}, "temperature", "2.5.*less than or equal to 2"),
        ({"n": 17}, "n", "17.*less than or equal to 16"),
        ({"n": 2, "best_of": 3}, "best_of", "3.*2"),
        ({"logprobs": 6}, "logprobs", "6.*5"),
        ({"logprobs": True}, "logprobs", "True"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"echo": True, "stream": True}, "echo", "True"),
        ({"suffix": "z"}, "suffix", "suffix is not supported"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a", "pattern"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "101.*100"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "not supported"),
        ({"guided_decoding_backend": "a"}, "guided_decoding_backend", "guided_decoding_backend is not supported"),
        ({"tools": []}, "tools", "tools is not supported"),
        ({"store": True}, "store", "True"),
        ({"priority": 0}, "priority", "0.*1"),
    ],
)
def test_wrong_field_of_a_completion(gateway: GatewayProcess, fields: dict[str, Any], param: str, message: str) -> None:
    refused(gateway, COMPLETION, {"model": "llm", "prompt": "one", **fields}, param, message)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "function", "content": "a"}]}, "messages[0].role", "'function'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "None"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
            "messages[0].content[0].image_url.url",
            "'a'; it must be a data URL",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0]",
            "'input_audio'.*'text'",
        ),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "2.*1"),
        ({"top_logprobs": 1}, "top_logprobs", "logprobs is true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "21.*20"),
        ({"prompt": "a"}, "prompt", "prompt is not supported"),
    ],
)
def test_wrong_field_of_a_chat(gateway: GatewayProcess, fields: dict[str, Any], param: str, message: str) -> None:
    refused(gateway, CHAT, {"model": "llm", "messages": USER, **fields}, param, message)


IMAGE = "data:image/png;base64,iVBORw0KGgo="
TEXT_PART = {"type": "text", "text": "a"}


def message_of(*content: dict[str, Any]) -> dict[str, Any]:
    return {"model": "llm", "max_tokens": 5, "messages": [{"role": "user", "content": list(content)}]}


def item_of(**item: Any) -> dict[str, Any]:
    return {"model": "llm", "input": [item]}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, message_of({**TEXT_PART, "new": 1}), "messages[0].content[0].new"),
        (CHAT, message_of({"type": "text"}), "messages[0].content[0].text"),
        (CHAT, message_of({"type": "text", "text": 5}), "messages[0].content[0].text"),
        (CHAT, message_of({"type": "image_url", "image_url": {"url": IMAGE}, "new": 1}), "messages[0].content[0].new"),
        (CHAT, message_of({"type": "image_url", "image_url": IMAGE}), "messages[0].content[0].image_url"),
        (
            CHAT,
            message_of({"type": "image_url", "image_url": {"url": IMAGE, "new": 1}}),
            "messages[0].content[0].image_url.new",
        ),
        (
            CHAT,
            {"model": "llm", "messages": USER, "prediction": {"type": "content", "content": [{**TEXT_PART, "new": 1}]}},
            "prediction.content[0].new",
        ),
        ("/tokenize", {"model": "llm", "messages": [{**USER[0], "content": [{**TEXT_PART, "new": 1}]}]}, None),
        (
            "/v1/responses",
            item_of(role="user", content=[{"type": "input_text", "text": "a", "new": 1}]),
            "input[0].content[0].new",
        ),
        ("/v1/responses", item_of(type="reasoning", id="x", summary=[], new=1), "input[0].new"),
        (
            "/v1/responses",
            item_of(type="function_call_output", call_id="a", output=[{"type": "input_text", "text": "a", "new": 1}]),
            "input[0].output[0].new",
        ),
    ],
)
def test_the_field_in_a_part_of_a_kind_is_named(
    gateway: GatewayProcess, path: str, body: dict[str, Any], param: str | None
) -> None:
    refused(gateway, path, body, param or "messages[0].content[0].new", "is")


def test_the_field_in_the_result_of_a_tool_is_named(gateway: GatewayProcess) -> None:
    result = {"type": "tool_result", "tool_use_id": "x", "content": [{**TEXT_PART, "new": 1}]}
    answer = httpx.post(f"{gateway.url}/v1/messages", json=message_of(result))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "messages[0].content[0].content[0].new is not supported"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "/v1/messages",
            message_of({"type": "document"}),
            r"\[0\].content\[0\] is {'type': 'document'}: its type must be one of 'text', 'image', 'tool_result'$",
        ),
        (
            "/v1/messages",
            {"model": "llm", "max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "image"}]}]},
            "its type must be one of 'text', 'thinking', 'tool_use'$",
        ),
        ("/v1/messages", message_of({"text": "a"}), "its type is missing$"),
        (
            "/v1/messages",
            {"model": "llm", "max_tokens": 5, "messages": [{"role": "tool"}]},
            "its role must be one of 'user', 'assistant', 'system'$",
        ),
        (CHAT, message_of({"type": "file"}), "its type must be one of 'text', 'image_url', 'refusal'$"),
        (
            "/v1/responses",
            item_of(type="custom_tool_call"),
            "its type must be one of 'message', 'function_call', 'function_call_output', 'reasoning'$",
        ),
    ],
    ids=["messages-user", "messages-assistant", "messages-missing", "messages-role", "chat", "responses"],
)
def test_the_kinds_that_a_part_may_be_of_are_listed(
    gateway: GatewayProcess, path: str, body: dict[str, Any], message: str
) -> None:
    answer = httpx.post(gateway.url + path, json=body)
    assert answer.status_code == 400
    assert re.search(message, answer.json()["error"]["message"]), answer.text


@pytest.mark.parametrize(
    ("headers", "body", "status", "message"),
    [
        (
            {"Content-Encoding": "gzip"},
            gzip.compress(b"{}", mtime=0),
            415,
            "Content-Encoding is 'gzip'; the body must not be",
        ),
        ({}, b'{"model": "\xe9"}', 400, "the body is not UTF-8: invalid continuation byte at byte 11"),
    ],
)
def test_bodies_in_another_encoding(
    gateway: GatewayProcess, headers: dict[str, str], body: bytes, status: int, message: str
) -> None:
    answer = httpx.post(gateway.url + CHAT, content=body, headers={"Content-Type": "application/json", **headers})
    assert answer.status_code == status
    assert message in error_of(answer)["message"]


def refused(gateway: GatewayProcess, path: str, body: dict[str, Any], param: str, message: str) -> None:
    response = httpx.post(gateway.url + path, json=body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert re.search(message, error["message"]), error["message"]
    assert param.split(".")[0] in error["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"[1]", "invalid_body"),
        (b"", "missing_field"),
        (b"[" * 100_000, "bad_request"),
        (b'{"model": "llm", "prompt": "\xff"}', "bad_request"),
        (b'{"model": "llm", "prompt": "\\ud800"}', "invalid_value"),
        (b'{"model": "llm", "prompt": "a", "temperature": NaN}', "invalid_value"),
    ],
)
def test_body_that_is_no_request(gateway: GatewayProcess, body: bytes, code: str) -> None:
    response = httpx.post(gateway.url + COMPLETION, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["code"] == code


def test_body_that_is_not_said_to_be_json(gateway: GatewayProcess) -> None:
    response = httpx.post(gateway.url + COMPLETION, content=b'{"model": "llm", "prompt": "one"}')
    assert response.status_code == 400
    assert "application/json" in error_of(response)["message"]


def test_unknown_model(client: OpenAI) -> None:
    for ask in (
        lambda: client.completions.create(model="gpt", prompt="one"),
        lambda: client.chat.completions.create(model="gpt", messages=USER),  # type: ignore[arg-type]
        lambda: client.models.retrieve("gpt"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_paths_and_methods_that_are_not_there(gateway: GatewayProcess) -> None:
    response = httpx.get(f"{gateway.url}/v1/nothing")
    assert (response.status_code, error_of(response)["code"]) == (404, "not_found")
    response = httpx.get(gateway.url + COMPLETION)
    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("INVALID_ARG", 400, "invalid_request_error"),
        ("UNAVAILABLE", 429, "rate_limit_error"),
        ("INTERNAL", 500, "server_error"),
        ("NOT_FOUND", 503, "server_error"),
        ("CANCELLED", 503, "server_error"),
    ],
)
def test_failure_before_the_first_token_has_its_status(
    gateway: GatewayProcess, stream: bool, code: str, status: int, kind: str
) -> None:
    body = {"model": "llm", "prompt": f"!error {code}", "stream": stream}
    response = httpx.post(gateway.url + COMPLETION, json=body)
    assert response.status_code == status
    error = error_of(response)
    assert (error["type"], error["param"]) == (kind, None)
    assert ("retry-after" in response.headers) == (status == 429)


def test_failure_in_the_middle_ends_the_stream_with_an_event(client: OpenAI, gateway: GatewayProcess) -> None:
    with client.completions.create(model="llm", prompt="one two !error INTERNAL", stream=True) as stream:
        assert [next(stream).choices[0].text for _ in range(2)] == ["one ", "two "]
        with pytest.raises(openai.APIError, match="server failed"):
            next(stream)
    body = {"model": "llm", "prompt": "one !error UNAVAILABLE", "stream": True}
    response = httpx.post(gateway.url + COMPLETION, json=body)
    assert response.status_code == 200
    assert '"code":"server_overloaded"' in response.text.strip().splitlines()[-1]
    assert "[DONE]" not in response.text


def test_one_failing_prompt_fails_the_request(client: OpenAI) -> None:
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="llm", prompt=["!gap 10 !forever", "!gap 50 one !error UNAVAILABLE"])


def test_server_that_is_away() -> None:
    # Port 1 is reserved, and no process listens on it.
    with GatewayProcess("127.0.0.1:1") as gateway, gateway.openai() as client:
        gateway.wait_for(["/v1/models"], 30)
        response = httpx.get(f"{gateway.url}/health", timeout=10)
        assert (response.status_code, error_of(response)["code"]) == (503, "server_not_ready")
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model="llm", prompt="one")
        assert (caught.value.status_code, caught.value.code) == (503, "server_not_ready")


def test_model_that_is_not_there(server: TritonServer) -> None:
    with GatewayProcess(server.grpc_url, "--model", "nothing", "--served-model-name", "org/name") as gateway:
        gateway.wait_for(["/v1/models"], 30)
        assert httpx.get(f"{gateway.url}/health").status_code == 503
        with gateway.openai() as client:
            assert [model.id for model in client.models.list()] == ["org/name"]
            assert "max_model_len" not in client.models.retrieve("org/name").to_dict()
            with pytest.raises(openai.InternalServerError, match="nothing") as caught:
                client.completions.create(model="org/name", prompt="one")
        assert caught.value.status_code == 503
