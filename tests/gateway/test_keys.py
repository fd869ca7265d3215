"""API keys: which clients may send requests, under which tenant and with which priority."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from inflight_gateway.keys import ApiKey, KeyRing
from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


FILE = f"""
[[keys]]
name = "team-a"
sha256 = "{digest("secret-a")}"
tenant = "a"
priority = 2

[[keys]]
name = "team-b"
sha256 = "{digest("secret-b")}"
"""


@pytest.fixture(scope="module")
def guarded(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(FILE)
    with GatewayProcess(server.grpc_url, "--api-keys", str(path)) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


def tenant_and_priority(gateway: GatewayProcess, key: str, **fields: Any) -> tuple[str | None, int | None]:
    """Return the tenant and the priority that the server received."""
    with gateway.openai(key) as client:
        answer = client.completions.create(model="llm", prompt="!request", extra_body=fields)
    parameters = json.loads(json.loads(answer.choices[0].text)["sampling_parameters"])
    return parameters.get("tenant"), parameters.get("priority")


@pytest.mark.parametrize(
    ("key", "asked", "expected"),
    [
        ("secret-a", {}, ("a", 2)),
        ("secret-a", {"priority": 3}, ("a", 3)),
        ("secret-a", {"priority": 1, "user": "b"}, ("a", 2)),
        ("secret-b", {}, ("team-b", None)),
        ("secret-b", {"priority": 1}, ("team-b", 1)),
    ],
)
def test_key_decides_tenant_and_highest_priority(
    guarded: GatewayProcess, key: str, asked: dict[str, Any], expected: tuple[str, int | None]
) -> None:
    assert tenant_and_priority(guarded, key, **asked) == expected


@pytest.mark.parametrize(("key", "tenant"), [("secret-a", "a"), ("secret-b", "team-b")])
def test_tenants_take_turns_where_texts_are_tokenized(guarded: GatewayProcess, key: str, tenant: str) -> None:
    def post(path: str, **body: Any) -> Any:
        headers = {"authorization": f"Bearer {key}"}
        response = httpx.post(guarded.url + path, headers=headers, json={"model": "llm", **body})
        assert response.status_code == 200, response.text
        return response.json()

    messages = [{"role": "user", "content": "!tenant"}]
    assert "".join(post("/tokenize", prompt="!tenant", return_token_strs=True)["token_strs"]) == tenant
    assert "".join(post("/tokenize", messages=messages, return_token_strs=True)["token_strs"]) == tenant
    assert post("/detokenize", tokens=[2**20 + ord(character) for character in "!tenant"])["prompt"] == tenant
    assert post("/v1/messages/count_tokens", messages=messages)["input_tokens"] == len(tenant)
    assert post("/v1/responses/input_tokens", input="!tenant")["input_tokens"] == len(tenant)
    (choice,) = post("/v1/completions", prompt="!tenant", add_special_tokens=False)["choices"]
    assert choice["text"].strip() == tenant


@pytest.mark.parametrize("key", ["wrong", "secret-A", digest("secret-a"), "k\u00e9y"])
def test_wrong_key(guarded: GatewayProcess, key: str) -> None:
    headers = {"authorization": f"Bearer {key}".encode()}
    response = httpx.post(f"{guarded.url}/v1/completions", headers=headers, json={"model": "llm", "prompt": "one"})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert httpx.post(f"{guarded.url}/tokenize", headers=headers, json={"prompt": "one"}).status_code == 401
    with guarded.openai("wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic c2VjcmV0LWE="}, {"authorization": "secret-a"}])
def test_no_key_at_all(guarded: GatewayProcess, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models")):
        # The body is invalid too, but a client without a key must not learn that.
        response = httpx.request(method, guarded.url + path, headers=headers, content=b"{")
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"


def test_health_and_metrics_need_no_key(guarded: GatewayProcess) -> None:
    assert httpx.get(f"{guarded.url}/health").status_code == 200
    assert httpx.get(f"{guarded.url}/metrics").status_code == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys = 1", "keys: Input should be a valid list"),
        ("", "keys: Field required"),
        ("keys = []", "keys: List should have at least 1"),
        ("[[keys]", "line 1"),
        ('[[keys]]\nname = "a"\nsha256 = "secret"', "keys.0.sha256: .*pattern"),
        (f'[[keys]]\nname = ""\nsha256 = "{digest("a")}"', "keys.0.name"),
        (f'[[keys]]\nname = "{"a" * 257}"\nsha256 = "{digest("a")}"', "keys.0.name: .*at most 256"),
        (f'[[keys]]\nname = "a"\nsha256 = "{digest("a")}"\npriority = 0', "keys.0.priority.*1"),
        (f'[[keys]]\nname = "a"\nsha256 = "{digest("a")}"\nkey = "a"', "keys.0.key: Extra inputs"),
        (FILE.replace("team-b", "team-a"), "share the name team-a"),
        (FILE.replace(digest("secret-b"), digest("secret-a")), "share the sha256"),
    ],
)
def test_file_that_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        KeyRing.read(path)


def test_each_key_is_found() -> None:
    keys = [ApiKey(name=name, sha256=digest(name)) for name in ("a", "b", "c")]
    ring = KeyRing(keys)
    assert [ring.find(name) for name in ("a", "b", "c")] == keys
    assert ring.find("d") is None
