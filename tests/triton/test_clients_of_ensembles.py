"""The variant `trtllm` answers as clients of TensorRT-LLM's models `ensemble` and `tensorrt_llm_bls` read answers."""

import queue
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer
from tests.running_server import running_server

PROMPT = "The capital of France is"
TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
BLOCKS = ("kv_cache_alloc_total_blocks", "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks")
SAMPLED: dict[str, Any] = {
    "temperature": np.float32(1.5),
    "random_seed": np.uint64(7),
    "num_return_sequences": np.int32(3),
}


@pytest.fixture(scope="module")
def served(first_layers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    parameters = {"model": str(first_layers), "kv_cache_tokens": "2048"}
    repository = render_repository(tmp_path_factory.mktemp("served") / "models", parameters=parameters)
    with running_server(repository, ["llm"], ["--model-config-name=trtllm"]) as server:
        yield server


def ask(served: TritonServer, outputs: Sequence[str], prompt: str = PROMPT, **fields: Any) -> list[Any]:
    """Return the results of a request whose tensors are all [1, 1]."""
    given = {"max_tokens": np.int32(6), "end_id": np.int32(-1), **fields}
    arrays = {"text_input": np.array([[prompt]], object)} | {name: value.reshape(1, 1) for name, value in given.items()}
    inputs = [
        triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]
    found: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(served.grpc_url) as client:
        client.start_stream(lambda result, error: found.put(error or result))
        named = [triton.InferRequestedOutput(name) for name in ("text_output", *outputs)]
        client.async_stream_infer("llm", inputs, outputs=named)
        client.stop_stream()
    results = list(found.queue)
    assert not any(isinstance(result, Exception) for result in results), results
    return results


def text_of(result: Any) -> str:
    (text,) = result.as_numpy("text_output")
    return str(text.decode())


def test_a_text_has_no_batch_dimension(served: TritonServer) -> None:
    (whole,) = ask(served, ())
    excluded = np.bool_(True)
    (answer,) = ask(served, (), exclude_input_in_output=excluded)
    streamed = ask(served, (), stream=np.bool_(True))
    assert len(streamed) > 1
    assert text_of(whole) == PROMPT + text_of(answer) == PROMPT + "".join(map(text_of, streamed))
    (beams,) = ask(served, (), beam_width=np.int32(2), exclude_input_in_output=excluded)
    assert beams.as_numpy("text_output").shape == (2,)


@pytest.mark.parametrize("stream", [False, True])
def test_each_sequence_has_responses_of_its_own(served: TritonServer, stream: bool) -> None:
    texts: defaultdict[int, str] = defaultdict(str)
    asked = {**SAMPLED, "stream": np.bool_(stream), "exclude_input_in_output": np.bool_(True)}
    results = ask(served, ["sequence_index", "batch_index"], **asked)
    for result in results:
        ((index,),) = result.as_numpy("sequence_index")
        texts[index] += text_of(result)
    assert len(results) > 3 if stream else len(results) == 3
    (together,) = ask(served, (), **{**asked, "stream": np.bool_(False)})
    assert [texts[index] for index in range(3)] == [text.decode() for text in together.as_numpy("text_output")]
    assert len(set(texts.values())) > 1


def test_http_gets_one_response_with_all_sequences(served: TritonServer) -> None:
    fields = {name: value.item() for name, value in SAMPLED.items()}
    answer = httpx.post(
        f"http://{served.http_url}/v2/models/llm/generate",
        json={"text_input": PROMPT, "max_tokens": 6, "end_id": -1, "exclude_input_in_output": True, **fields},
    )
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["text_output"]) == 3
    assert "sequence_index" not in answer.json()


def test_what_happened_to_a_request(served: TritonServer) -> None:
    prompt = "one two three " * 16  # 48 tokens, three blocks.
    asked = {"return_perf_metrics": np.bool_(True)}
    ask(served, (), prompt)
    (result,) = ask(served, [*TIMES, *BLOCKS], prompt, **asked)
    times = [result.as_numpy(name)[0][0] for name in TIMES]
    assert 0 < times[0] <= times[1] <= times[2] <= times[3]
    # With all but the last of six tokens of the output there are 53. The last token of a prompt is always computed.
    assert [result.as_numpy(name)[0][0] for name in BLOCKS] == [4, 1, 3]
