"""Conversations that fill the context of a model, or the KV cache, which is smaller here."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI
from transformers import AutoTokenizer, LlamaConfig

from scripts.launch.default_model import default_model
from scripts.launch.model_repository import render_repository
from scripts.reference.tiny_models import save_model
from tests.gateway.gateway_process import GatewayProcess
from tests.running_server import running_server

CONTEXT, CACHED = 256, 192
WORD = "a "
"""One token."""
GREEDY: Any = {"temperature": 0}
"""Newer clients have no argument for it."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anthropic]:
    folder = tmp_path_factory.mktemp("served")
    tokenizer = AutoTokenizer.from_pretrained(default_model())
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
    )
    save_model(config, folder / "model")
    tokenizer.save_pretrained(folder / "model")
    parameters = {"model": str(folder / "model"), "dtype": "float32", "kv_cache_tokens": str(CACHED)}
    with (
        running_server(render_repository(folder / "models", parameters=parameters), ["llm"]) as server,
        GatewayProcess(server.grpc_url) as gateway,
        Anthropic(base_url=gateway.url, api_key="none", max_retries=0, timeout=60) as client,
    ):
        gateway.wait_for(["/health"], 30)
        yield client


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def tokens_of(client: Anthropic, messages: Any) -> int:
    return client.messages.count_tokens(model="llm", messages=messages).input_tokens


@pytest.mark.parametrize("max_tokens", [CACHED, CONTEXT, 32_000])
@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_may_be_more_than_there_is_room_for(client: Anthropic, max_tokens: int, stream: bool) -> None:
    """As Claude Code asks for 32,000. The stop reason says that the context is full."""
    asked: Any = {"model": "llm", "max_tokens": max_tokens, "messages": user("Why?"), "extra_body": GREEDY}
    if stream:
        with client.messages.stream(**asked) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**asked)
    room = CACHED + 1 - tokens_of(client, asked["messages"])
    assert (message.stop_reason, message.usage.output_tokens) == ("model_context_window_exceeded", room)


def test_max_tokens_that_there_is_room_for(client: Anthropic) -> None:
    messages = user("Why?")
    room = CACHED + 1 - tokens_of(client, messages)
    message = client.messages.create(model="llm", max_tokens=room, messages=messages, extra_body=GREEDY)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", room)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (CACHED, rf"\d+ tokens > {CACHED} maximum"),
        (CONTEXT, rf"\d+ tokens > {CONTEXT - 1} maximum"),
        (CONTEXT * 100, r"messages is \d+ bytes long"),
    ],
)
def test_what_is_too_long_is_refused_in_words_that_clients_know(client: Anthropic, words: int, says: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=f"prompt is too long: {says}"):
        client.messages.create(model="llm", max_tokens=9, messages=user(WORD * words))


def test_a_chat_that_is_too_long_is_named_by_a_field_that_its_api_has(client: Anthropic) -> None:
    with OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as other:
        with pytest.raises(openai.BadRequestError, match="prompt has") as caught:
            other.chat.completions.create(model="llm", max_tokens=9, messages=user(WORD * CONTEXT))
        assert caught.value.param == "messages"
        with pytest.raises(openai.BadRequestError, match="prompt has") as caught:
            other.responses.create(model="llm", input=WORD * CONTEXT)
        assert caught.value.param == "input"
        with pytest.raises(openai.BadRequestError, match="input is refused: prompt has") as caught:
            other.embeddings.create(model="llm", input=WORD * CONTEXT * 2)
        assert caught.value.param == "input"
        with pytest.raises(openai.BadRequestError, match="max_completion_tokens is refused") as caught:
            other.chat.completions.create(model="llm", max_completion_tokens=CONTEXT, messages=user(WORD))
        assert caught.value.param == "max_completion_tokens"


@pytest.mark.parametrize(("words", "room"), [(CACHED, CACHED), (CONTEXT, CONTEXT), (CONTEXT * 100, CONTEXT)])
@pytest.mark.parametrize("stream", [False, True])
def test_openais_clients_know_by_its_code_that_a_chat_is_too_long(
    client: Anthropic, words: int, room: int, stream: bool
) -> None:
    """Or by its words, where programs look only at these."""
    with OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as other:
        with pytest.raises(openai.BadRequestError, match=rf"This model's maximum context length is {room} ") as caught:
            other.chat.completions.create(model="llm", max_tokens=1, messages=user(WORD * words), stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
