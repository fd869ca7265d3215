"""`llm` in the place of TensorRT-LLM's model `tensorrt_llm`: alone, and in an ensemble with the tensors of theirs."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from scripts.launch.default_model import default_model
from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer
from tests.running_server import running_server
from tests.triton.tensorrt_llm_ensemble import add_ensemble

KINDS = {np.dtype(np.int32): "INT32", np.dtype(np.float32): "FP32", np.dtype(bool): "BOOL"}
PROMPT = "The capital of France is"
Greedy = Callable[[str, int], str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = default_model()
    parameters = {"model": str(folder), "dtype": "float32", "kv_cache_tokens": "2048"}
    rendered = render_repository(tmp_path_factory.mktemp("rendered") / "models", parameters=parameters)
    repository = tmp_path_factory.mktemp("served") / "models"
    shutil.copytree(rendered / "llm", repository / "tensorrt_llm", symlinks=True)
    shutil.copy(rendered / "llm" / "configs" / "tensorrt_llm.pbtxt", repository / "tensorrt_llm" / "config.pbtxt")
    add_ensemble(repository, folder)
    with running_server(repository, ["tensorrt_llm", "ensemble"]) as server:
        yield server


def ask(served: TritonServer, **tensors: Any) -> list[Mapping[str, Any]]:
    """Return the outputs of each response of `tensorrt_llm`, without the batch dimension."""
    inputs = []
    for name, value in tensors.items():
        array = np.array(value)
        array = array.astype(np.int32) if array.dtype == np.int64 else array
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        array = array.reshape(1, *(array.shape or (1,)))
        inputs.append(triton.InferInput(name, array.shape, KINDS[array.dtype]).set_data_from_numpy(array))
    found: list[Any] = []
    with triton.InferenceServerClient(served.grpc_url) as client:
        client.start_stream(lambda result, error: found.append(error or result))
        client.async_stream_infer("tensorrt_llm", inputs)
        client.stop_stream()
    if isinstance(found[-1], Exception):
        raise found[-1]
    return [
        {output.name: result.as_numpy(output.name)[0] for output in result.get_response().outputs} for result in found
    ]


def generate(served: TritonServer, **fields: Any) -> dict[str, Any]:
    """Ask the ensemble, and return its answer."""
    answer = httpx.post(f"http://{served.http_url}/v2/models/ensemble/generate", json=fields, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_tokens_in_and_tokens_out(served: TritonServer, tokenizer: Any, greedy: Greedy) -> None:
    ids = tokenizer(PROMPT)["input_ids"]
    (whole,) = ask(served, input_ids=ids, input_lengths=len(ids), request_output_len=6, end_id=-1)
    assert whole.keys() == {"output_ids", "sequence_length"}
    assert whole["output_ids"][0, : len(ids)].tolist() == ids
    assert whole["sequence_length"].tolist() == [len(ids) + 6]
    answer = whole["output_ids"][0, len(ids) :].tolist()
    assert tokenizer.decode(answer) == greedy(PROMPT, 6)
    filled = {"input_ids": [*ids, 9, 9], "input_lengths": len(ids), "request_output_len": 6, "end_id": -1}
    (excluded,) = ask(served, **filled, exclude_input_in_output=True)
    assert excluded["output_ids"].tolist() == [answer]
    streamed = ask(served, **filled, streaming=True)
    assert len(streamed) > 3
    assert [token for each in streamed for token in each["output_ids"][0, : each["sequence_length"][0]]] == answer


def test_words_biases_scores_and_counts(served: TritonServer, tokenizer: Any) -> None:
    ids = tokenizer(PROMPT)["input_ids"]
    common = {"input_ids": ids, "input_lengths": len(ids), "exclude_input_in_output": True, "end_id": -1}
    (free,) = ask(served, **common, request_output_len=8)
    tokens = free["output_ids"][0].tolist()
    (stopped,) = ask(served, **common, request_output_len=8, stop_words_list=[[tokens[2], 5], [1, -1]])
    assert stopped["output_ids"][0].tolist() == tokens[:3]
    (stopped,) = ask(served, **common, request_output_len=8, stop_words_list=[tokens[2:5], [3, -1, -1]])
    assert stopped["output_ids"][0].tolist() == tokens[:5]
    (other,) = ask(served, **common, request_output_len=8, bad_words_list=[[tokens[0], *tokens[1:3]], [1, 3, -1]])
    assert tokens[0] not in other["output_ids"]
    bias = np.zeros(49152, np.float32)
    bias[4321] = 100
    (biased,) = ask(served, **common, request_output_len=2, embedding_bias=bias)
    assert biased["output_ids"].tolist() == [[4321, 4321]]
    (scored,) = ask(
        served,
        **common,
        request_output_len=3,
        return_log_probs=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
        return_perf_metrics=True,
    )
    assert scored["output_log_probs"].shape == (1, 3)
    assert scored["cum_log_probs"][0] == pytest.approx(scored["output_log_probs"].sum(), rel=1e-5)
    assert (scored["num_input_tokens"].tolist(), scored["num_output_tokens"].tolist()) == ([len(ids)], [3])
    assert 0 < scored["arrival_time_ns"] <= scored["first_token_time_ns"] <= scored["last_token_time_ns"]


def test_samples_and_beams(served: TritonServer, tokenizer: Any) -> None:
    ids = tokenizer(PROMPT)["input_ids"]
    common = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": 5, "exclude_input_in_output": True}
    (samples,) = ask(served, **common, num_return_sequences=3, runtime_top_p=0.9, temperature=1.5)
    assert samples["output_ids"].shape[0] == samples["sequence_length"].shape[0] == 3
    (beams,) = ask(served, **common, beam_width=2)
    assert beams["sequence_length"].tolist() == [5, 5]
    # A probability of 0 counts as none, and then the number of tokens decides.
    (one,) = ask(served, **common, runtime_top_k=1, runtime_top_p=0.0, temperature=1.5)
    (likeliest,) = ask(served, **common)
    assert one["output_ids"].tolist() == likeliest["output_ids"].tolist()


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"input_lengths": 3}, "input_lengths is 3; it must be at least 1 and at most 2, as input_ids has"),
        ({"input_lengths": 0}, "input_lengths is 0; it must be at least 1"),
        ({"stop_words_list": [[1, 2], [3, -1]]}, "stop_words_list has a word that ends at 3; it must be over 0 and at"),
        ({"bad_words_list": [[1, 2], [2, 1]]}, "bad_words_list has a word that ends at 1; it must be over 2 and at"),
        ({"return_context_logits": True}, "return_context_logits is given; there is no such thing here"),
        ({"embedding_bias": [101.0]}, "logit_bias of token 0 is 101.0; it must be at least -100 and at most 100"),
        ({"request_output_len": 0}, "max_tokens is 0; it must be at least 1"),
        ({"embedding_bias": [1.0] * 1025}, "embedding_bias has 1025 numbers other than 0; it must have at most 1024"),
    ],
)
def test_what_cannot_be_served_is_named(served: TritonServer, tensors: dict[str, Any], says: str) -> None:
    with pytest.raises(InferenceServerException, match=says.replace("[", r"\[").replace(".", r"\.")):
        ask(served, **{"input_ids": [1, 2], "request_output_len": 1, **tensors})
    (answer,) = ask(served, input_ids=[1, 2], request_output_len=1, return_context_logits=False)
    assert answer["sequence_length"].tolist() == [3]


def test_a_batch_of_prompts_is_refused(served: TritonServer) -> None:
    inputs = [
        triton.InferInput("input_ids", [2, 3], "INT32").set_data_from_numpy(np.ones((2, 3), np.int32)),
        triton.InferInput("request_output_len", [2, 1], "INT32").set_data_from_numpy(np.ones((2, 1), np.int32)),
    ]
    found: list[Any] = []
    with triton.InferenceServerClient(served.grpc_url) as client:
        client.start_stream(lambda result, error: found.append(error or result))
        client.async_stream_infer("tensorrt_llm", inputs)
        client.stop_stream()
    assert "has the batch size 2; it must be 1" in str(found[0])


def test_an_ensemble_turns_texts_into_texts(served: TritonServer, greedy: Greedy) -> None:
    answer = generate(served, text_input=PROMPT, max_tokens=6, exclude_input_in_output=True)
    assert answer["text_output"] == greedy(PROMPT, 6)
    assert generate(served, text_input=PROMPT, max_tokens=6)["text_output"] == PROMPT + greedy(PROMPT, 6)
    word = greedy(PROMPT, 6).split()[0]
    other = generate(served, text_input=PROMPT, max_tokens=6, exclude_input_in_output=True, bad_words=[f" {word}"])
    assert f" {word}" not in other["text_output"]
    stopped = generate(served, text_input=PROMPT, max_tokens=6, exclude_input_in_output=True, stop_words=[f" {word}"])
    assert stopped["text_output"] == f" {word}"
    liked = generate(
        served,
        text_input=PROMPT,
        max_tokens=1,
        exclude_input_in_output=True,
        embedding_bias_words=[" cheese"],
        embedding_bias_weights=[90.0],
    )
    assert liked["text_output"] == " cheese"
    scored = generate(served, text_input=PROMPT, max_tokens=4, return_log_probs=True, return_num_output_tokens=True)
    assert len(scored["output_log_probs"]) == scored["num_output_tokens"] == 4


def test_an_ensemble_streams(served: TritonServer, greedy: Greedy) -> None:
    body = {"text_input": PROMPT, "max_tokens": 6, "stream": True}
    url = f"http://{served.http_url}/v2/models/ensemble/generate_stream"
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    assert len(events) > 3
    assert "".join(event["text_output"] for event in events) == greedy(PROMPT, 6)
