"""The configuration variants load. The one for TensorRT-LLM's clients has batch dimensions in inputs and outputs."""

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from load_tests.tensors import tensors
from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer
from tests.running_server import running_server
from tests.triton.nvidia_frontend import check_32_chats_at_once, tensorrt_llm_form
from tests.triton.test_cancellation import LONG, leave_completion
from tests.triton.test_contract import stream


@pytest.fixture(scope="module")
def trtllm(first_layers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = render_repository(
        tmp_path_factory.mktemp("trtllm") / "models",
        parameters={
            "model": str(first_layers),
            "kv_cache_tokens": "4096",
            "stream_interval": "3",
            "exclude_input_in_output": "true",
        },
    )
    with running_server(repository, ["llm", "completion"], ["--model-config-name=trtllm"]) as running:
        yield running


def batch(name: str, rows: list[list[Any]], dtype: Any) -> httpclient.InferInput:
    array = np.array(rows, dtype=dtype)
    kind = {np.object_: "BYTES", np.int32: "INT32", np.float32: "FP32"}[dtype]
    tensor = httpclient.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor


def test_embeddings_in_a_batch(trtllm: TritonServer) -> None:
    asked = [json.dumps({"input": text, "pooling_params": {}}) for text in ("One", "Another text")]
    rows = [batch("embedding_request", [[text] for text in asked], np.object_)]
    with httpclient.InferenceServerClient(trtllm.http_url) as client:
        as_text = client.infer("completion", rows).as_numpy("text_output")
        flag = httpclient.InferInput("return_embedding", [2, 1], "BOOL")
        flag.set_data_from_numpy(np.array([[True], [True]]))
        embeddings = client.infer("completion", [*rows, flag]).as_numpy("embedding")
    assert embeddings.shape == (2, 576)
    assert np.float32([json.loads(row.item()) for row in as_text]).tolist() == embeddings.tolist()


def test_requests_of_tensorrt_llm_clients(trtllm: TritonServer) -> None:
    """The fields of TensorRT-LLM's ensemble over generate_stream, which adds the batch dimension itself."""
    events = stream(
        trtllm,
        text_input="The sky is",
        max_tokens=6,
        bad_words=["green"],
        stop_words=["ZZZ"],
        pad_id=2,
        end_id=2,
        beam_width=1,
        length_penalty=1.0,
        top_k=1,
        temperature=1.0,
        return_log_probs=True,
    )
    assert sum(len(np.atleast_1d(event["output_log_probs"])) for event in events) == 6
    assert events[-1]["cum_log_probs"] < 0


def test_the_first_request_in_the_pages_of_tensorrt_llm(trtllm: TritonServer) -> None:
    body = {"text_input": "What is machine learning?", "max_tokens": 5, "bad_words": "", "stop_words": ""}
    answer = httpx.post(f"http://{trtllm.http_url}/v2/models/llm/generate", json={**body, "pad_id": 2, "end_id": 2})
    assert answer.status_code == 200, answer.text
    assert answer.json()["text_output"]


def test_a_request_has_one_prompt(trtllm: TritonServer) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    prompts = grpcclient.InferInput("input_ids", [2, 3], "INT32")
    prompts.set_data_from_numpy(np.arange(1, 7, dtype=np.int32).reshape(2, 3))
    with grpcclient.InferenceServerClient(trtllm.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("llm", [prompts])
        answer = answers.get(timeout=60)
    assert "input_ids has the batch size 2; it must be 1, as a request has one prompt" in str(answer)


def test_chats_of_nvidias_openai_frontend(trtllm: TritonServer) -> None:
    check_32_chats_at_once(trtllm.grpc_url, tensorrt_llm_form)


def test_tokens_of_a_stream_go_out_together(trtllm: TritonServer) -> None:
    """Three tokens per response, as `stream_interval` says. The first and the last token do not wait."""
    events = stream(trtllm, text_input="One, two,", max_tokens=9, top_k=1, end_id=2, return_log_probs=True)
    counts = [len(np.atleast_1d(event["output_log_probs"])) for event in events]
    assert sum(counts) == 9
    assert len(counts) <= 4
    assert all(count >= 3 for count in counts[1:-1])


def test_completion_answers_a_batch_of_prompts(trtllm: TritonServer) -> None:
    prompts = [["One, two,"], ["Red, green and"], ["Paris is the capital of"]]
    with httpclient.InferenceServerClient(trtllm.http_url, network_timeout=60) as client:
        rows = [batch("max_tokens", [[4]] * 3, np.int32)]
        result = client.infer("completion", [batch("text_input", prompts, np.object_), *rows])
        texts = result.as_numpy("text_output")
        alone = [
            client.infer(
                "completion", [batch("text_input", [prompt], np.object_), batch("max_tokens", [[4]], np.int32)]
            ).as_numpy("text_output")[0, 0]
            for prompt in prompts
        ]
    assert texts.shape == (3, 1)
    assert texts[:, 0].tolist() == alone


def test_rows_of_a_batch_may_differ(trtllm: TritonServer, tokenizer: Any) -> None:
    """In their numbers of tokens and samples, and in what they ask for. What a row lacks is padded."""
    asked = [
        {"max_tokens": 3, "return_token_ids": True},
        {"max_tokens": 6, "return_token_ids": True, "n": 2, "temperature": 0},
        {"max_tokens": 2, "return_finish_reason": True},
    ]
    rows = [
        batch("text_input", [["One, two,"]] * 3, np.object_),
        batch(
            "sampling_parameters", [[json.dumps({**row, "exclude_input_in_output": True})] for row in asked], np.object_
        ),
    ]
    with httpclient.InferenceServerClient(trtllm.http_url, network_timeout=60) as client:
        result = client.infer("completion", rows)
    texts, ids = result.as_numpy("text_output"), result.as_numpy("token_ids")
    assert result.as_numpy("finish_reason").tolist() == [[b""], [b""], [b"length"]]
    assert [[text != b"" for text in row] for row in texts] == [[True, False], [True, True], [True, False]]
    assert (ids >= 0).sum(axis=-1).tolist() == [[3, 0], [6, 6], [0, 0]]
    for row, sample in ((0, 0), (1, 0), (1, 1)):
        tokens = [token for token in ids[row, sample].tolist() if token >= 0]
        assert tokenizer.decode(tokens) == texts[row, sample].decode()


def test_a_client_that_leaves_completion_frees_the_engine(trtllm: TritonServer) -> None:
    inputs = tensors({name: value for name, value in LONG.items() if name != "stream"}, batched=True)
    leave_completion(trtllm, inputs, 3)
