"""Prompts with embeddings over the wire: the answers are those of transformers' `generate`."""

import asyncio
import io
import json
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from inflight_client import AsyncClient, Client, InvalidRequest
from scripts.launch.default_model import default_model
from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer
from tests.running_server import running_server
from tests.triton.embeds_models import add_encoder

WIDTH, TOKENS = 576, 12
BEFORE, AFTER = "The capital of", " is Paris. The capital of Italy is"
WEIGHTS = np.random.default_rng(0).normal(0, 0.05, (8, WIDTH)).astype(np.float32)
SIGNAL = np.random.default_rng(1).normal(0, 1, (5, 8)).astype(np.float32)


@dataclass(frozen=True)
class Served:
    server: TritonServer
    model: Any
    tokenizer: Any

    def table(self, text: str) -> NDArray[np.float32]:
        """[tokens, width], the embeddings of a text."""
        ids = torch.tensor(self.tokenizer(text)["input_ids"])
        with torch.inference_mode():
            return np.array(self.model.get_input_embeddings()(ids).numpy())

    def expected(self, embeds: NDArray[np.float32]) -> str:
        with torch.inference_mode():
            output = self.model.generate(
                inputs_embeds=torch.from_numpy(embeds)[None], max_new_tokens=TOKENS, do_sample=False
            )
        return str(self.tokenizer.decode(output[0], skip_special_tokens=True))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = default_model()
    parameters = {"model": str(folder), "dtype": "float32", "kv_cache_tokens": "2048", "enable_prompt_embeds": "true"}
    repository = render_repository(tmp_path_factory.mktemp("served") / "models", parameters=parameters)
    file = io.BytesIO()
    np.save(file, WEIGHTS)
    add_encoder(repository, file.getvalue())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with running_server(repository, ["llm", "completion", "encoder", "speech"]) as server:
        yield Served(server, model, AutoTokenizer.from_pretrained(folder))


def test_the_client_sends_embeddings(served: Served) -> None:
    """Alone, in a text, and among token ids, in single and in half precision."""
    embeds = served.table(BEFORE + " France" + AFTER)
    inside = served.table(" France") + np.random.default_rng(0).normal(0, 0.02, (1, WIDTH)).astype(np.float32)
    whole = np.concatenate([served.table(BEFORE), inside, served.table(AFTER)])
    before, after = (served.tokenizer(text)["input_ids"] for text in (BEFORE, AFTER))
    with Client(served.server.grpc_url) as client:
        ask = partial(client.generate, max_tokens=TOKENS, temperature=0)
        assert ask(prompt_embeds=embeds).text == ask(BEFORE + " France" + AFTER).text == served.expected(embeds)
        wanted = served.expected(whole)
        assert ask(prompt_embeds=whole).text == wanted
        assert ask(f"{BEFORE}<|prompt_embeds|>{AFTER}", prompt_embeds=inside).text == wanted
        assert ask([*before, 49152, *after], prompt_embeds=inside).text == wanted
        half = inside.astype(np.float16)
        rounded = np.concatenate([served.table(BEFORE), half.astype(np.float32), served.table(AFTER)])
        assert ask([*before, 49152, *after], prompt_embeds=half).text == served.expected(rounded)


def test_an_async_client_streams(served: Served) -> None:
    embeds = served.table(BEFORE + " France" + AFTER)

    async def answer() -> str:
        async with AsyncClient(served.server.grpc_url) as client:
            stream = client.stream(prompt_embeds=embeds, max_tokens=TOKENS, temperature=0)
            return "".join([chunk.text async for chunk in stream])

    assert asyncio.run(answer()) == served.expected(embeds)


@pytest.mark.parametrize(
    ("prompt", "asked", "says"),
    [
        (None, {"prompt_embeds": np.zeros((1, 7), np.float32)}, "prompt_embeds is 1 x 7; it must have at least 1 row"),
        ("Text.", {"prompt_embeds": np.zeros((1, WIDTH), np.float32)}, "text_input has '<|prompt_embeds|>' 0 times"),
        (
            None,
            {"prompt_embeds": np.zeros((2, WIDTH), np.float16), "sampling_parameters": {"prompt_vocab_size": 3}},
            "prompt_vocab_size is 3; it must be the 2 rows of prompt_embedding_table",
        ),
        (None, {"prompt_embeds": np.zeros((1, WIDTH), np.float32), "return_prompt": True}, "given with return_prompt"),
        (
            [1, 2],
            {"prompt_embeds": np.zeros((1, WIDTH), np.float32), "sampling_parameters": {"truncate_prompt_tokens": 1}},
            "truncate_prompt_tokens is given with prompt_embeds",
        ),
        ("Text.", {"sampling_parameters": {"prompt_vocab_size": 3}}, "prompt_vocab_size is given without"),
        (None, {"prompt_embeds": np.full((9, WIDTH), np.inf, np.float32)}, "a value in row 0 that is no finite number"),
    ],
)
def test_what_does_not_fit_is_refused(served: Served, prompt: Any, asked: dict[str, Any], says: str) -> None:
    with Client(served.server.grpc_url) as client, pytest.raises(InvalidRequest) as error:
        client.generate(prompt, max_tokens=1, **asked)
    assert says in str(error.value)


def test_chats_and_http_are_refused(served: Served) -> None:
    embeds = np.zeros((1, WIDTH), np.float32)
    with Client(served.server.grpc_url) as client, pytest.raises(InvalidRequest, match="is given with messages"):
        client.generate(messages=[{"role": "user", "content": "Hello"}], prompt_embeds=embeds)
    http = Client(f"http://{served.server.http_url}")
    with http as client, pytest.raises(InvalidRequest, match="they need gRPC"):
        client.generate(prompt_embeds=embeds)


def test_json_has_rows_as_lists(served: Served) -> None:
    """For few rows, over HTTP."""
    row = served.table(" France")
    asked = {"max_tokens": TOKENS, "temperature": 0, "prompt_embeds": row.tolist(), "exclude_input_in_output": True}
    body = {"text_input": f"{BEFORE}<|prompt_embeds|>{AFTER}", "sampling_parameters": json.dumps(asked)}
    reply = httpx.post(f"http://{served.server.http_url}/v2/models/llm/generate", json=body, timeout=60)
    assert reply.json()["text_output"] == served.expected(served.table(BEFORE + " France" + AFTER))
    asked["prompt_embeds"] = [[0.0] * WIDTH, [0.0]]
    body["sampling_parameters"] = json.dumps(asked)
    reply = httpx.post(f"http://{served.server.http_url}/v2/models/llm/generate", json=body, timeout=60)
    assert "prompt_embeds must be one list of rows, which are lists of numbers of the same length" in reply.text


def test_an_ensemble_puts_an_encoder_before_the_model(served: Served) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    asked = {"max_tokens": TOKENS, "temperature": 0, "stream": True}
    text = f"A signal:<|prompt_embeds|>{AFTER}"
    inputs = [
        triton.InferInput("text_input", [1], "BYTES"),
        triton.InferInput("signal", list(SIGNAL.shape), "FP32"),
        triton.InferInput("sampling_parameters", [1], "BYTES"),
    ]
    values = (np.array([text.encode()], object), SIGNAL, np.array([json.dumps(asked).encode()], object))
    for each, value in zip(inputs, values, strict=True):
        each.set_data_from_numpy(value)
    with triton.InferenceServerClient(served.server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("speech", inputs, enable_empty_final_response=True)
        texts = []
        while True:
            answer = answers.get(timeout=60)
            assert not isinstance(answer, Exception), answer
            if (found := answer.as_numpy("text_output")) is not None:
                texts.append(found[0].decode())
            if answer.get_response().parameters["triton_final_response"].bool_param:
                break
    whole = np.concatenate([served.table("A signal:"), SIGNAL @ WEIGHTS, served.table(AFTER)])
    assert len(texts) > 3
    assert "".join(texts) == served.expected(whole)
