"""POST /tokenize and /detokenize, with vLLM's shapes. A token of the echo model is a character."""

from typing import Any

import httpx
import pytest

from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_tools import TOOLS, user


def post(gateway: GatewayProcess, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(gateway.url + path, json=body)


@pytest.mark.parametrize("body", [{"prompt": "Ulm"}, {"model": "llm", "messages": user("Ulm"), "tools": TOOLS}])
def test_tokens_and_their_text(gateway: GatewayProcess, body: dict[str, Any]) -> None:
    found = post(gateway, "/tokenize", body).json()
    tokens = [2**20 + ord(character) for character in "Ulm"]
    assert found == {"count": 3, "max_model_len": 8192, "tokens": tokens, "token_strs": None}
    assert post(gateway, "/tokenize", {**body, "return_token_strs": True}).json()["token_strs"] == ["U", "l", "m"]
    assert post(gateway, "/detokenize", {"tokens": tokens}).json() == {"prompt": "Ulm"}


def test_the_list_of_models_tells_the_length_of_the_context(gateway: GatewayProcess) -> None:
    post(gateway, "/v1/chat/completions", {"model": "llm", "messages": user("a")})  # By now, the model is known.
    (model,) = httpx.get(f"{gateway.url}/v1/models").json()["data"]
    assert (model["id"], model["root"], model["max_model_len"]) == ("llm", "llm", 8192)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": user("a"), "add_generation_prompt": 1}, "add_generation_prompt"),
        ("/tokenize", {"messages": user("a"), "chat_template": "{{ messages }}"}, "chat_template"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
def test_what_is_wrong_is_refused_by_name(gateway: GatewayProcess, path: str, body: Any, param: str) -> None:
    response = post(gateway, path, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_other_models_are_not_there(gateway: GatewayProcess) -> None:
    assert post(gateway, "/tokenize", {"model": "gpt", "prompt": "a"}).status_code == 404
