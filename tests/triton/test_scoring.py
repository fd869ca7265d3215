"""Scores of prompts and embeddings over the wire are those of transformers."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as grpcclient

from load_tests.tensors import tensors
from scripts.launch.triton_server import TritonServer
from tests.triton.test_contract import generate, stream

PROMPT = "The capital of France is Paris. 東京"


@pytest.fixture(scope="module")
def prompt_ids(tokenizer: Any) -> list[int]:
    return list(tokenizer(PROMPT)["input_ids"])


def assert_scored(written: str, prompt_ids: list[int], reference: Any, tokenizer: Any, count: int) -> None:
    first, *entries = json.loads(written)
    assert first is None
    with torch.inference_mode():
        rows = reference(torch.tensor([prompt_ids])).logits[0, :-1].log_softmax(dim=-1)
    for entry, token, row in zip(entries, prompt_ids[1:], rows, strict=True):
        assert {int(other) for other in entry} == {token, *row.topk(count).indices.tolist()}
        for other, value in entry.items():
            assert value["logprob"] == pytest.approx(row[int(other)].item(), abs=1e-4)
            assert value["rank"] == 1 + int((row > row[int(other)]).sum())
            assert value["decoded_token"] == tokenizer.decode([int(other)])


def test_a_prompt_is_scored_and_nothing_generated(
    server: TritonServer, tokenizer: Any, reference: Any, prompt_ids: list[int]
) -> None:
    answer = generate(
        server,
        text_input=PROMPT,
        max_tokens=0,
        prompt_logprobs=2,
        return_prompt_logprobs=True,
        return_prompt=True,
        return_finish_reason=True,
        return_usage=True,
        return_token_ids=True,
    )
    assert_scored(answer["prompt_logprobs"], prompt_ids, reference, tokenizer, 2)
    assert json.loads(answer["prompt"]) == {
        "text": PROMPT,
        "token_ids": prompt_ids,
        "tokens": [tokenizer.decode([token]) for token in prompt_ids],
    }
    assert answer["text_output"] == PROMPT  # As for any whole answer.
    assert (answer["finish_reason"], answer["usage"], answer["token_ids"]) == ("length", [len(prompt_ids), 0], -1)


def test_a_prompt_comes_back_as_token_ids_alone(server: TritonServer, prompt_ids: list[int]) -> None:
    asked = json.dumps({"return_prompt": "ids"})
    answer = generate(server, text_input=PROMPT, max_tokens=1, sampling_parameters=asked)
    assert json.loads(answer["prompt"]) == {"token_ids": prompt_ids}


def test_a_stream_brings_the_scores_once(
    server: TritonServer, tokenizer: Any, reference: Any, prompt_ids: list[int]
) -> None:
    plain = stream(server, text_input=PROMPT, max_tokens=6)
    sampling = {"prompt_logprobs": 0, "logprob_token_ids": [5, 9], "n": 2, "temperature": 0}
    events = stream(
        server,
        input_ids=prompt_ids,
        max_tokens=6,
        sampling_parameters=json.dumps(sampling),
        return_prompt_logprobs=True,
        return_prompt=True,
        return_logprobs=True,
    )
    (scored,) = [event["prompt_logprobs"] for event in events if "prompt_logprobs" in event]
    assert_scored(scored, prompt_ids, reference, tokenizer, 0)
    assert [json.loads(event["prompt"])["text"] for event in events if "prompt" in event] == [PROMPT]
    texts = ["".join(event["text_output"][sample] for event in events) for sample in range(2)]
    assert texts == ["".join(event["text_output"] for event in plain)] * 2
    entries = [entry for event in events for entry in json.loads(event["logprobs"][0]) or ()]
    assert len(entries) == 6
    assert all({"5", "9"} <= entry.keys() and len(entry) <= 3 for entry in entries)


def test_scores_that_nobody_asked_for_are_null(server: TritonServer) -> None:
    answer = generate(server, text_input=PROMPT, max_tokens=1, return_prompt_logprobs=True)
    assert (answer["prompt_logprobs"], "prompt" in answer) == ("null", False)


def embed(server: TritonServer, fields: dict[str, Any]) -> Any:
    """Send a request as vllm_backend's own test does, over a stream of gRPC, and return its only response."""
    results: list[Any] = []
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: results.append(error or result))
        client.async_stream_infer("llm", tensors(fields))
        client.stop_stream()  # Waits for the answer.
    (result,) = results
    return result


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embeddings_as_vllm_backend_has_them(
    server: TritonServer, reference: Any, prompt_ids: list[int], pooling: str
) -> None:
    with torch.inference_mode():
        states = reference.base_model(torch.tensor([prompt_ids])).last_hidden_state[0]
    wanted = states[-1] if pooling == "last" else states.mean(dim=0)
    counts = {"return_num_input_tokens": True, "return_num_output_tokens": True}
    for given, params in ((PROMPT, {}), (prompt_ids, {"dimensions": [5]})):
        asked = {"input": given, "pooling_params": {"pooling": pooling, **params}}
        fields = {"text_input": "", "embedding_request": json.dumps(asked), **counts}
        answer = embed(server, fields)
        kept = wanted[: params.get("dimensions", [576])[0]]
        unit = (kept / kept.norm()).numpy()
        found = json.loads(answer.as_numpy("text_output").item())
        assert all(isinstance(number, float) for number in found)
        assert np.abs(np.array(found) - unit).max() < 1e-5
        assert answer.as_numpy("num_input_tokens").tolist() == [len(prompt_ids)]
        assert answer.as_numpy("num_output_tokens").tolist() == [0]
        assert answer.as_numpy("embedding") is None
        as_tensor = embed(server, {**fields, "return_embedding": True})
        assert as_tensor.as_numpy("text_output").tolist() == [b""]
        assert as_tensor.as_numpy("embedding").tolist() == np.float32(found).tolist()


def test_an_embedding_whose_time_is_over_is_an_error(server: TritonServer) -> None:
    late = {"embedding_request": json.dumps({"input": [5] * 5000}), "sampling_parameters": '{"deadline_ms": 20}'}
    assert "deadline" in embed(server, late).message()
