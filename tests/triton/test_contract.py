"""Clients of vllm_backend and TensorRT-LLM find all inputs that they send and all outputs that they read."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aio
from transformers import AutoModelForCausalLM

from load_tests.tensors import tensors
from scripts.launch.triton_server import TritonServer
from tests.triton.wire import Answer, ask

Greedy = Callable[[str, int], str]
PROMPT = "The capital of France is"


def generate(server: TritonServer, **body: Any) -> dict[str, Any]:
    """Send a request to the generate endpoint and return its outputs. It must succeed."""
    reply = httpx.post(f"http://{server.http_url}/v2/models/llm/generate", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def stream(server: TritonServer, **body: Any) -> list[dict[str, Any]]:
    url = f"http://{server.http_url}/v2/models/llm/generate_stream"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as reply:
        return [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: ")]


def test_seven_inputs_of_vllm_backend_and_its_outputs(server: TritonServer, greedy: Greedy) -> None:
    """The inputs as Triton's OpenAI frontend sends them: with numbers as JSON numbers in sampling_parameters."""
    flags = ["finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"]
    events = stream(
        server,
        text_input=PROMPT,
        exclude_input_in_output=True,
        sampling_parameters=json.dumps({"max_tokens": 6, "temperature": 0, "top_p": 1, "logprobs": 2, "n": 1}),
        **{f"return_{flag}": True for flag in flags},
    )
    assert "".join(event["text_output"] for event in events) == greedy(PROMPT, 6)
    assert [event["finish_reason"] for event in events] == ["None"] * (len(events) - 1) + ["length"]
    assert sum(event["num_output_tokens"] for event in events) == 6
    assert {event["num_input_tokens"] for event in events} == {5}
    entries = [entry for event in events for entry in json.loads(event["logprobs"])]
    assert len(entries) == 6
    total = sum(max(entry.values(), key=lambda e: e["logprob"])["logprob"] for entry in entries)
    assert events[-1]["cumulative_logprob"] == pytest.approx(total, rel=1e-4)


def test_clients_get_only_the_outputs_that_they_name(server: TritonServer) -> None:
    """Many at once: Triton removes the other outputs in the model's process, while others are being made."""
    fields = {"text_input": PROMPT, "max_tokens": 8, "return_token_ids": True, "return_usage": True, "stream": True}

    async def one() -> Any:
        inputs, outputs = tensors(fields), [aio.InferRequestedOutput("token_ids")]
        yield {"model_name": "llm", "inputs": inputs, "outputs": outputs}

    async def ask_one(client: aio.InferenceServerClient) -> list[int]:
        ids: list[int] = []
        async for result, error in client.stream_infer(one()):
            assert error is None
            assert [output.name for output in result.get_response().outputs] == ["token_ids"]
            ids += result.as_numpy("token_ids").flatten().tolist()
        return ids

    async def ask_many() -> list[list[int]]:
        async with aio.InferenceServerClient(server.grpc_url) as client:
            return await asyncio.gather(*(ask_one(client) for _ in range(64)))

    answers = asyncio.run(ask_many())
    assert len(answers[0]) == 8
    assert answers == answers[:1] * 64


def test_token_ids_are_those_of_the_text(server: TritonServer, tokenizer: Any, greedy: Greedy) -> None:
    events = stream(server, text_input=PROMPT, max_tokens=6, return_token_ids=True)
    ids = [token for event in events for token in as_list(event["token_ids"]) if token >= 0]
    assert tokenizer.decode(ids) == greedy(PROMPT, 6)
    answer = generate(
        server, text_input=PROMPT, n=2, temperature=1.0, seed=3, max_tokens=8, stop=[" the"], return_token_ids=True
    )
    rows = np.array(answer["token_ids"]).reshape(2, -1)
    for text, row in zip(answer["text_output"], rows, strict=True):
        assert tokenizer.decode([token for token in row if token >= 0]).startswith(text.removeprefix(PROMPT))


def test_usage_comes_with_the_first_and_the_last_response(server: TritonServer, tokenizer: Any) -> None:
    events = stream(server, text_input=PROMPT, max_tokens=6, return_usage=True)
    prompt = len(tokenizer(PROMPT)["input_ids"])
    assert [event.get("usage") for event in events] == [[prompt, 1], *[None] * (len(events) - 2), [prompt, 6]]
    assert generate(server, text_input=PROMPT, n=2, max_tokens=3, return_usage=True)["usage"] == [prompt, 6]


def test_what_ended_a_sample_is_told_at_its_end(server: TritonServer, tokenizer: Any, greedy: Greedy) -> None:
    asked: dict[str, Any] = {"text_input": PROMPT, "max_tokens": 20, "return_stop_reason": True, "ignore_eos": True}
    text = greedy(PROMPT, 20)
    word = text.split()[2]
    events = stream(server, **asked, stop=["never there", word])
    assert [json.loads(event["stop_reason"]) for event in events if "stop_reason" in event] == [word]
    assert "stop_reason" in events[-1]
    token = tokenizer(text)["input_ids"][3]
    assert json.loads(generate(server, **asked, stop_token_ids=[token])["stop_reason"]) == token
    for shown in (False, True):
        reason = generate(server, **asked, stop=[word], include_stop_str_in_output=shown)["stop_reason"]
        assert json.loads(reason) == word
    several = generate(server, **asked, stop=[word], n=2, temperature=1.0, seed=1)["stop_reason"]
    assert all(json.loads(reason) in (None, word) for reason in several)
    assert json.loads(generate(server, **asked)["stop_reason"]) is None


def test_each_end_of_a_sample_is_told_once(server: TritonServer) -> None:
    asked: dict[str, Any] = {"text_input": PROMPT, "max_tokens": 30, "temperature": 1.0, "seed": 1, "stop": ["e"]}
    sampling = json.dumps({"n": 4, "return_finish_reason": "last"})
    events = stream(server, **asked, sampling_parameters=sampling, return_stop_reason=True)
    told = [event for event in events if "finish_reason" in event]
    num_ended = [4 - event["finish_reason"].count("None") for event in told]
    assert num_ended == sorted(set(num_ended))
    assert num_ended[-1] == 4
    assert told == [event for event in events if "stop_reason" in event]
    between = events[events.index(told[0]) : events.index(told[-1])]
    assert len(between) >= len(told)  # Otherwise this tests nothing.


def test_tokens_in_the_cache_are_told_with_the_first_and_the_last_response(server: TritonServer) -> None:
    asked: dict[str, Any] = {"text_input": "one two three four " * 20, "return_num_cached_tokens": True}
    block = 16
    counts = [
        [event.get("num_cached_tokens") for event in stream(server, **asked, max_tokens=4, cache_salt="a")]
        for _ in range(2)
    ]
    size = generate(server, **asked, max_tokens=1, return_usage=True)["usage"][0]
    assert counts == [[0, None, None, 0], [(size - 1) // block * block, None, None, (size - 1) // block * block]]


def as_list(value: Any) -> list[Any]:
    """Triton writes a list with one element as a single value."""
    return value if isinstance(value, list) else [value]


def test_optional_outputs_come_only_when_asked_for(server: TritonServer) -> None:
    answer = generate(server, text_input=PROMPT, max_tokens=2)
    assert answer.keys() == {"model_name", "model_version", "text_output"}
    assert "finish_reason" not in generate(server, text_input=PROMPT, max_tokens=2, return_finish_reason=False)
    assert generate(server, text_input=PROMPT, max_tokens=2, return_finish_reason=True)["finish_reason"] == "length"


def test_logprobs_are_null_where_the_request_gives_no_number_of_them(server: TritonServer) -> None:
    """As in vllm_backend, also if other outputs need log-probabilities."""
    asked = {"return_logprobs": True, "return_cumulative_logprob": True}
    answer = generate(server, text_input=PROMPT, max_tokens=2, **asked)
    assert answer["logprobs"] == "null"
    assert answer["cumulative_logprob"] < 0
    parameters = json.dumps({"logprobs": 0})
    assert (
        len(
            json.loads(
                generate(server, text_input=PROMPT, max_tokens=2, sampling_parameters=parameters, **asked)["logprobs"]
            )
        )
        == 2
    )


def test_logprobs_are_those_of_the_model(server: TritonServer, tokenizer: Any, default_model_folder: Any) -> None:
    answer = generate(
        server,
        text_input=PROMPT,
        return_logprobs=True,
        sampling_parameters=json.dumps({"max_tokens": 1, "logprobs": 3}),
    )
    model = AutoModelForCausalLM.from_pretrained(default_model_folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(**tokenizer(PROMPT, return_tensors="pt")).logits[0, -1]
    values, tokens = logits.log_softmax(-1).topk(3)
    (entry,) = json.loads(answer["logprobs"])
    assert list(entry) == [str(token) for token in tokens.tolist()]
    for rank, (token, value) in enumerate(zip(tokens.tolist(), values.tolist(), strict=True), start=1):
        assert entry[str(token)]["rank"] == rank
        assert entry[str(token)]["logprob"] == pytest.approx(value, abs=1e-3)
        assert entry[str(token)]["decoded_token"] == tokenizer.decode([token])


def test_genai_perf_sends_numbers_as_text(server: TritonServer) -> None:
    parameters = json.dumps({"max_tokens": "7", "min_tokens": "7"})
    answer = generate(
        server,
        text_input=PROMPT,
        exclude_input_in_output=True,
        sampling_parameters=parameters,
        return_num_output_tokens=True,
    )
    assert answer["num_output_tokens"] == 7


def test_samples_of_a_request_differ_and_share_its_prompt(server: TritonServer) -> None:
    parameters = json.dumps({"n": 3, "max_tokens": 12, "temperature": 1.0, "seed": 11})
    body = {"text_input": PROMPT, "exclude_input_in_output": True, "sampling_parameters": parameters}
    texts = generate(server, **body)["text_output"]
    assert len(set(texts)) == 3
    assert generate(server, **body)["text_output"] == texts
    pieces = [event["text_output"] for event in stream(server, **body)]
    assert ["".join(parts) for parts in zip(*pieces, strict=True)] == texts


def test_tokens_as_input(server: TritonServer, tokenizer: Any, greedy: Greedy) -> None:
    ids = tokenizer(PROMPT)["input_ids"]
    assert generate(server, input_ids=ids, max_tokens=5)["text_output"] == greedy(PROMPT, 5)


def test_other_spellings(server: TritonServer) -> None:
    """The names of both generations of TensorRT-LLM's models, and OpenAI's."""
    seeded = {"text_input": PROMPT, "temperature": 1.0, "max_tokens": 8}
    assert generate(server, **seeded, seed=5) == generate(server, **seeded, random_seed=5)
    parameters = json.dumps({"max_completion_tokens": 3})
    short = generate(server, text_input=PROMPT, sampling_parameters=parameters, return_num_output_tokens=True)
    assert short["num_output_tokens"] == 3
    long = generate(server, text_input="Hi", max_tokens=30, min_length=30, return_num_output_tokens=True)
    assert long["num_output_tokens"] == 30


def test_bad_words_and_biases_change_the_choice(server: TritonServer, tokenizer: Any, greedy: Greedy) -> None:
    usual = greedy(PROMPT, 1)
    assert usual == " Paris"
    assert "Paris" not in generate(server, text_input=PROMPT, max_tokens=8, bad_words=["Paris"])["text_output"]
    (token,) = tokenizer(" London")["input_ids"]
    parameters = json.dumps({"max_tokens": 1, "logit_bias": {str(token): 100}})
    assert generate(server, text_input=PROMPT, sampling_parameters=parameters)["text_output"].endswith(" London")


def test_an_answer_has_only_the_tokens_that_are_allowed(server: TritonServer, tokenizer: Any) -> None:
    cities = ["Rome", " London", " Berlin"]
    allowed = [tokenizer(city)["input_ids"][0] for city in cities]
    fields = {"text_input": PROMPT, "max_tokens": 5, "exclude_input_in_output": True}
    answer = generate(server, **fields, allowed_token_ids=allowed, temperature=1.0, return_finish_reason=True)
    assert answer["finish_reason"] == "length"
    assert re.sub("Rome| London| Berlin", "", answer["text_output"]) == ""
    parameters = json.dumps({"allowed_token_ids": [allowed[1]]})
    assert generate(server, **fields, sampling_parameters=parameters)["text_output"] == " London" * 5


def test_end_id_ends_the_text(server: TritonServer, tokenizer: Any, greedy: Greedy) -> None:
    assert greedy(PROMPT, 2) == " Paris."
    ids = tokenizer(PROMPT + " Paris.")["input_ids"]
    answer = generate(
        server, text_input=PROMPT, max_tokens=8, end_id=ids[6], exclude_input_in_output=True, return_finish_reason=True
    )
    assert answer["finish_reason"] == "stop"
    # TensorRT-LLM's clients send a token outside any vocabulary to ignore the end token.
    for none in (-1, 49152, 1_048_576):
        assert generate(server, text_input=PROMPT, max_tokens=8, end_id=none, exclude_input_in_output=True)[
            "text_output"
        ] == greedy(PROMPT, 8)
    assert answer["text_output"] == " Paris"


def test_own_tensor_wins_over_json_and_json_over_parameter(server: TritonServer) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        counts = []
        for fields in (
            {"max_tokens": 2, "sampling_parameters": '{"max_tokens": 3}'},
            {"sampling_parameters": '{"max_tokens": 3}'},
            {},
        ):
            results: list[Any] = []
            client.start_stream(lambda result, error: results.append(result))  # noqa: B023 - the stream ends in this iteration
            client.async_stream_infer(
                "llm",
                tensors({"text_input": PROMPT, "exclude_input_in_output": True, **fields}),
                parameters={"max_tokens": 4, "return_num_output_tokens": True},
            )
            client.stop_stream()
            counts.append(int(results[0].as_numpy("num_output_tokens")[0]))
    assert counts == [2, 3, 4]


@pytest.mark.parametrize("given", [{"seed": 2**63}, {"max_tokens": 3.0}], ids=["seed", "max_tokens"])
def test_whole_numbers_stay_whole_between_models(server: TritonServer, given: dict[str, Any]) -> None:
    """Triton reads both as floating-point numbers."""
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}
    body = {"inputs": [text], "parameters": {"max_tokens": 3, "temperature": 1, **given}}
    answer = httpx.post(f"http://{server.http_url}/v2/models/completion/infer", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n": 0}, "n is 0; it must be at least 1 and at most 16"),
        ({"beam_width": 4, "stream": True}, "stream is true; it must be false with beam_width 4"),
        ({"seed": 1, "random_seed": 2}, "seed and random_seed are two names of one field"),
        ({"input_ids": [1, 2]}, "exactly one of text_input, messages, input_ids and embedding_request"),
        ({"sampling_parameters": '{"allowed_token_ids": []}'}, "allowed_token_ids has 0 tokens; it must have at least"),
        ({"sampling_parameters": json.dumps({"logit_bias": {"99999999": 1}})}, "logit_bias holds token 99999999"),
        ({"sampling_parameters": json.dumps({"logit_bias": [1]})}, "logit_bias is [1]; it must be an object"),
        (
            {"sampling_parameters": json.dumps({"logprobs": 500})},
            "logprobs is 500; it must be at least 0 and at most 20",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(server: TritonServer, body: dict[str, Any], message: str) -> None:
    reply = httpx.post(
        f"http://{server.http_url}/v2/models/llm/generate", json={"text_input": PROMPT, **body}, timeout=60
    )
    assert reply.status_code == 400
    assert message in reply.json()["error"]


def test_completion_answers_plain_infer(server: TritonServer, greedy: Greedy) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        inputs = tensors(
            {"text_input": PROMPT, "max_tokens": 5, "exclude_input_in_output": True, "return_finish_reason": True}
        )
        result = client.infer("completion", inputs)
    assert result.as_numpy("text_output").tolist() == [greedy(PROMPT, 5).encode()]
    assert np.array_equal(result.as_numpy("finish_reason"), np.array([b"length"], dtype=np.object_))


def test_completion_has_nothing_of_an_output_that_was_not_asked_for(server: TritonServer) -> None:
    """As `llm`, it then answers without it. The client names it, but the request has no field that asks for it."""
    inputs = tensors({"text_input": PROMPT, "max_tokens": 2})
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        result = client.infer("completion", inputs, outputs=[grpcclient.InferRequestedOutput("token_ids")])
    assert list(result.get_response().outputs) == []


def test_unfinished_requests_are_listed_under_their_clients_names(server: TritonServer) -> None:
    async def listed() -> list[dict[str, Any]]:
        async with aio.InferenceServerClient(server.grpc_url) as client, httpx.AsyncClient(timeout=60) as http:
            fields = {"text_input": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True, "tenant": "acme"}
            answers = [Answer(), Answer()]
            asked = [
                asyncio.create_task(ask(client, fields, into=answers[0], request_id="mine")),
                asyncio.create_task(ask(client, fields, into=answers[1], parameters={"x-request-id": "yours"})),
            ]
            while not all(answer.pieces for answer in answers):
                await asyncio.sleep(0.01)
            url = f"http://{server.http_url}/v2/models/llm/generate"
            during = json.loads((await http.post(url, json={"list_requests": True})).json()["text_output"])
            for task in asked:
                task.cancel()
            async with asyncio.timeout(20):
                while json.loads((await http.post(url, json={"list_requests": True})).json()["text_output"]):
                    await asyncio.sleep(0.05)
        return during

    during = asyncio.run(listed())
    assert {entry["request_id"] for entry in during} == {"mine", "yours"}
    assert all(entry["tenant"] == "acme" and entry["seconds"] > 0 and entry["output_tokens"] > 0 for entry in during)
    assert all(entry["running"] and entry["priority"] == 0 for entry in during)
    assert all(entry["computed_prompt_tokens"] == entry["prompt_tokens"] > 0 for entry in during)
