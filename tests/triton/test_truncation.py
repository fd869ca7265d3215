"""Long prompts that the client lets the server cut are answered like their ends."""

import json
from typing import Any

import httpx
import pytest

from inflight_client import Client
from scripts.launch.triton_server import TritonServer
from tests.triton.test_contract import generate

LONG = "Numbers: " + " ".join(map(str, range(20_000)))


@pytest.fixture(scope="module")
def long_ids(tokenizer: Any) -> list[int]:
    return list(tokenizer(LONG)["input_ids"])


def url(server: TritonServer) -> str:
    return f"http://{server.http_url}/v2/models/llm/generate"


def read_by(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = json.loads(answer["prompt"])["token_ids"]
    return ids


@pytest.mark.parametrize("name", ["text_input", "input_ids"])
def test_the_end_of_a_long_prompt_is_answered(server: TritonServer, long_ids: list[int], name: str) -> None:
    given = LONG if name == "text_input" else long_ids[-2000:]
    options = {"max_tokens": 8, "temperature": 0, "return_prompt": True, "exclude_input_in_output": True}
    answer = generate(server, **{name: given}, truncate_prompt_tokens=50, **options)
    assert read_by(answer) == long_ids[-50:]
    assert answer["text_output"] == generate(server, input_ids=long_ids[-50:], **options)["text_output"]


def test_as_much_as_there_is_room_for(server: TritonServer, long_ids: list[int]) -> None:
    """The prompt must be short, because it is computed, and the answer too, because it is generated."""
    short = {"max_tokens": 6045, "guided_choice": '["yes", "no"]'}
    kept = read_by(generate(server, text_input=LONG, truncate_prompt_tokens=-1, return_prompt=True, **short))
    assert kept == long_ids[-(6145 - 6045) :]  # The KV cache holds 6,144 tokens, and the last one needs no place.
    one_more = {"input_ids": long_ids[-len(kept) - 1 :], **short}
    assert httpx.post(url(server), json=one_more, timeout=60).status_code == 400


def test_embeddings(server: TritonServer, long_ids: list[int]) -> None:
    with Client(server.grpc_url) as client:
        cut = client.embed(LONG, truncate_prompt_tokens=64)
        assert cut.usage.prompt_tokens == 64
        assert cut.values == pytest.approx(client.embed(long_ids[-64:]).values, abs=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0; it must be at least 1, or -1"),
        (
            {"messages": '[{"role": "user", "content": "x"}]', "truncate_prompt_tokens": 5},
            "truncate_prompt_tokens is given with messages; it needs a prompt without a chat template",
        ),
        (
            {"text_input": "x", "truncate_prompt_tokens": 10**6},
            "truncate_prompt_tokens is 1000000; it must be at most 8192, the context",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(server: TritonServer, body: dict[str, Any], message: str) -> None:
    reply = httpx.post(url(server), json=body, timeout=60)
    assert reply.status_code == 400
    assert message in reply.json()["error"]
