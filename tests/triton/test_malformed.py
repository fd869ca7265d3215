"""Malformed requests get a message that names the field, the value and the bound, and affect no other request."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aio
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from scripts.launch.triton_server import TritonServer
from tests.eventually import eventually
from tests.triton.wire import INPUTS, Answer, Fields, ask, dtype, one, tensors, together

PROMPT = {"text_input": "Hello"}
INT64 = "at most 9223372036854775807"


def sampling(**fields: Any) -> Fields:
    """A prompt, and fields in the JSON of sampling_parameters."""
    return {**PROMPT, "sampling_parameters": json.dumps(fields)}


def embedding(request: Any) -> Fields:
    """A request for an embedding, in JSON or to be written as JSON."""
    return {"embedding_request": request if isinstance(request, str) else json.dumps(request)}


# Fields of the request, and a part of the expected message.
BAD: list[tuple[Fields, str]] = [
    # The prompt.
    ({}, "exactly one of text_input, messages, input_ids and embedding_request must be given, not none"),
    ({"text_input": "a", "messages": "[]"}, "embedding_request must be given, not text_input and messages"),
    ({"text_input": "a", "input_ids": [1, 2]}, "not text_input and input_ids"),
    ({"messages": "[]", "input_ids": [1]}, "not messages and input_ids"),
    ({"text_input": ""}, "text_input is empty; it must have at least 1 element"),
    (
        {"text_input": "word " * 140_000},
        "prompt is 700000 bytes long; it must be at most 663471, as the context is 8192",
    ),
    ({"text_input": "word " * 9000}, "has 9001 tokens; it must have at most 8191"),
    ({"text_input": b"caf\xe9 latte"}, "text_input is not valid UTF-8: byte 3 is 0xe9"),
    (
        {"messages": json.dumps([{"role": "user", "content": "a"}] * 4097)},
        "messages has 4097 messages; it must have at",
    ),
    (
        {"messages": '[{"role": "user|>", "content": "a"}]'},
        "messages[0].role is 'user|>'; it must be 1 to 64 letters, digits, '_' and '-'",
    ),
    ({"messages": ""}, "messages is empty; it must have at least 1 element"),
    ({"messages": "not json"}, "messages is 'not json'; it must be valid JSON"),
    ({"messages": "[" * 5000}, "messages is '[[["),
    ({"messages": "[]"}, "at least 1 message"),
    ({"messages": '{"role": "user", "content": "a"}'}, "at least 1 message"),
    ({"messages": "3"}, "at least 1 message"),
    ({"messages": '[{"role": "user"}]'}, "messages[0].content is None; it must be a text"),
    ({"messages": '[{"content": "a"}]'}, "messages[0].role is None; it must be a text"),
    ({"messages": '[{"role": "user", "content": ["a"]}]'}, "messages[0].content is ['a']; it must be a text"),
    ({"messages": '[{"role": "user", "content": "\\ud800"}]'}, "messages[0].content is not valid Unicode"),
    ({"messages": '["hello"]'}, "messages[0] is 'hello'; it must be an object with role and content"),
    ({"messages": b"\xff"}, "messages is not valid UTF-8: byte 0 is 0xff"),
    ({"input_ids": []}, "input_ids is empty; it must have at least 1 element"),
    ({"input_ids": [5, -1]}, "holds token -1; it must be at least 0 and below 49152"),
    ({"input_ids": [49152]}, "holds token 49152; it must be at least 0 and below 49152"),
    ({"input_ids": [1] * 8193}, "input_ids has 8193 elements; it must have at most 8192"),
    ({"input_ids": [1] * 8192}, "has 8192 tokens; it must have at most 8191"),
    (sampling(text_input=5), "text_input is 5; it must be a text"),
    # Embeddings.
    (embedding("["), "embedding_request is '['; it must be valid JSON"),
    (embedding("[]"), "embedding_request is []; it must be a JSON object"),
    (embedding({"input": ""}), "input of embedding_request is missing or empty"),
    (embedding({"input": ["a", "b"]}), "input of embedding_request is 'a'; it must be a whole number"),
    (embedding({"input": 5}), "input of embedding_request is 5; it must be a text or a list of token ids"),
    (embedding({"input": "x", "truncate": 5}), "embedding_request has the unknown key 'truncate'"),
    (embedding({"input": "x", "pooling_params": {"type": "cls"}}), "pooling_params has the unknown key 'type'"),
    (embedding({"input": "x", "pooling_params": {"pooling": "cls"}}), "pooling is 'cls'; it must be last or mean"),
    (embedding({"input": "x", "pooling_params": {"dimensions": [5, 6]}}), "dimensions is [5, 6]; it must be a whole"),
    (embedding({"input": "x", "pooling_params": {"dimensions": 577}}), "dimensions is 577; it must be at most 576"),
    (embedding({"input": "x", "pooling_params": {"task": "score"}}), "task of pooling_params is 'score'; it must be"),
    (embedding({"input": [49152]}), "holds token 49152; it must be at least 0 and below 49152"),
    ({**embedding({"input": "x"}), **PROMPT}, "not text_input and embedding_request"),
    ({**embedding({"input": "x"}), "max_tokens": 3}, "max_tokens is given beside embedding_request"),
    # Lengths.
    ({**PROMPT, "max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    ({**PROMPT, "max_tokens": -5}, "max_tokens is -5; it must be at least 1"),
    ({**PROMPT, "max_tokens": 100000}, "max_tokens is 100000; after a prompt of 1 tokens it must be at most 8191"),
    ({**PROMPT, "max_tokens": 7000}, "1 and 7000 tokens; together they must not be over 6145, as the KV cache holds"),
    ({**PROMPT, "min_tokens": -1}, "min_tokens is -1; it must be at least 0"),
    ({**PROMPT, "min_length": 9, "max_tokens": 3}, "min_tokens is 9; it must not be over max_tokens, 3"),
    ({**PROMPT, "min_tokens": 1, "min_length": 1}, "min_tokens and min_length are two names of one field"),
    (sampling(max_tokens="many"), "max_tokens is 'many'; it must be a whole number"),
    (sampling(max_tokens=True), "max_tokens is True; it must be a whole number"),
    (sampling(max_tokens=1.5), "max_tokens is 1.5; it must be a whole number"),
    (sampling(max_tokens=[4]), "max_tokens is [4]; it must be a whole number"),
    (sampling(max_tokens=3, max_completion_tokens=3), "max_tokens and max_completion_tokens are two names of one"),
    # Sampling.
    ({**PROMPT, "temperature": -1.0}, "temperature is -1.0; it must be at least 0"),
    ({**PROMPT, "temperature": float("nan")}, "temperature is nan; it must be finite"),
    ({**PROMPT, "temperature": float("inf")}, "temperature is inf; it must be finite"),
    (sampling(temperature=True), "temperature is True; it must be a number"),
    (sampling(temperature="hot"), "temperature is 'hot'; it must be a number"),
    ({**PROMPT, "top_k": -2}, "top_k is -2; it must be at least -1"),
    (sampling(top_k=1.5), "top_k is 1.5; it must be a whole number"),
    ({**PROMPT, "top_p": 0.0}, "top_p is 0.0; it must be over 0 and at most 1"),
    ({**PROMPT, "top_p": 1.5}, "top_p is 1.5; it must be over 0 and at most 1"),
    (sampling(top_p={}), "top_p is {}; it must be a number"),
    ({**PROMPT, "min_p": 1.5}, "min_p is 1.5; it must be at least 0 and at most 1"),
    ({**PROMPT, "min_p": -0.5}, "min_p is -0.5; it must be at least 0 and at most 1"),
    ({**PROMPT, "repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be over 0"),
    ({**PROMPT, "repetition_penalty": float("inf")}, "repetition_penalty is inf; it must be finite"),
    ({**PROMPT, "presence_penalty": 2.5}, "presence_penalty is 2.5; it must be at least -2 and at most 2"),
    ({**PROMPT, "frequency_penalty": -3.0}, "frequency_penalty is -3.0; it must be at least -2 and at most 2"),
    (sampling(seed=-1), "seed is -1; it must be at least 0 and at most 18446744073709551615"),
    (sampling(seed=2**64), "seed is 18446744073709551616; it must be at least 0 and at most 18446744073709551615"),
    ({**PROMPT, "seed": 1, "random_seed": 1}, "seed and random_seed are two names of one field"),
    (sampling(logit_bias=[1]), "logit_bias is [1]; it must be an object of token ids and numbers"),
    (sampling(logit_bias={"x": 1}), "logit_bias token is 'x'; it must be a whole number"),
    (sampling(logit_bias={"1": "y"}), "logit_bias of token 1 is 'y'; it must be a number"),
    (sampling(logit_bias={"1": 101}), "logit_bias of token 1 is 101.0; it must be at least -100 and at most 100"),
    (sampling(logit_bias={"-1": 1}), "logit_bias token is -1; it must be at least 0"),
    (sampling(logit_bias={"49152": 1}), "logit_bias holds token 49152; it must be at least 0 and below 49152"),
    (sampling(logit_bias={str(i): 1 for i in range(1025)}), "logit_bias has 1025 tokens; it must have at most 1024"),
    ({**PROMPT, "bad_words": [""]}, "bad_words holds an empty text; each must have at least 1 character"),
    ({**PROMPT, "bad_words": ["x" * 1025]}, "bad_words holds a text of 1025 characters; each must have at most 1024"),
    ({**PROMPT, "bad_words": ["x"] * 8193}, "bad_words has 8193 elements; it must have at most 8192"),
    ({**PROMPT, "bad_words": ["x"] * 129}, "bad_words has 129 texts; it must have at most 128"),
    ({**PROMPT, "bad_words": [b"\xfe"]}, "bad_words is not valid UTF-8: byte 0 is 0xfe"),
    (sampling(bad_words=[None]), "bad_words is None; it must be a text"),
    # Ends of the output.
    ({**PROMPT, "stop": ["a"], "stop_words": ["a"]}, "stop_words and stop are two names of one field"),
    ({**PROMPT, "stop_words": [""]}, "stop holds an empty text; each must have at least 1 character"),
    ({**PROMPT, "stop": ["a" * 1025]}, "stop holds a text of 1025 characters; each must have at most 1024"),
    ({**PROMPT, "stop": ["a"] * 17}, "stop has 17 texts; it must have at most 16"),
    ({**PROMPT, "stop": ["fine", b"\xff"]}, "stop is not valid UTF-8: byte 0 is 0xff"),
    (sampling(stop=3), "stop is 3; it must be a text"),
    (sampling(stop={"a": 1}), "stop is {'a': 1}; it must be a text"),
    (sampling(stop="\ud800"), "stop is not valid Unicode"),
    ({**PROMPT, "stop_token_ids": [-1]}, "stop_token_ids is -1; it must be at least 0"),
    ({**PROMPT, "stop_token_ids": [49152]}, "stop_token_ids holds token 49152; it must be at least 0 and below 49152"),
    (sampling(stop_token_ids=[[1]]), "stop_token_ids is [1]; it must be a whole number"),
    ({**PROMPT, "end_id": -2}, "end_id is -2; it must be at least -1"),
    (sampling(end_id="eos"), "end_id is 'eos'; it must be a whole number"),
    (sampling(ignore_eos="perhaps"), "ignore_eos is 'perhaps'; it must be true or false"),
    (sampling(ignore_eos=2), "ignore_eos is 2; it must be true or false"),
    # Samples and outputs.
    ({**PROMPT, "num_return_sequences": 0}, "n is 0; it must be at least 1 and at most 16"),
    (sampling(n=17), "n is 17; it must be at least 1 and at most 16"),
    (sampling(n="x"), "n is 'x'; it must be a whole number"),
    (sampling(n=1, num_return_sequences=1), "n and num_return_sequences are two names of one field"),
    (sampling(best_of=2, n=1), "best_of is 2; it must be 1: there is no beam search"),
    ({**PROMPT, "beam_width": 2}, "beam_width is 2; it must be 1: there is no beam search"),
    ({**PROMPT, "length_penalty": 2.0}, "length_penalty is 2.0; it must be 1.0: there is no beam search"),
    (sampling(logprobs=21), "logprobs is 21; it must be at least 0 and at most 20"),
    (sampling(prompt_logprobs=-1), "prompt_logprobs is -1; it must be at least 0 and at most 20"),
    (sampling(prompt_logprobs=0, max_tokens=0, n=2), "n is 2; it must be 1 where max_tokens is 0"),
    ({**PROMPT, "logprob_token_ids": [1] * 129}, "logprob_token_ids has 129 tokens; it must have at most 128"),
    ({**PROMPT, "logprob_token_ids": [49152]}, "logprob_token_ids holds token 49152; it must be at least 0"),
    (sampling(logprobs=-1), "logprobs is -1; it must be at least 0 and at most 20"),
    (sampling(return_logprobs="maybe"), "return_logprobs is 'maybe'; it must be true or false"),
    (sampling(exclude_input_in_output=[]), "exclude_input_in_output is []; it must be true or false"),
    (
        {**PROMPT, "stream": True, "exclude_input_in_output": False},
        "When streaming, `exclude_input_in_output` = False is not allowed.",
    ),
    # The queue.
    ({**PROMPT, "priority": -1}, f"priority is -1; it must be at least 0 and {INT64}"),
    (sampling(priority="high"), "priority is 'high'; it must be a whole number"),
    (sampling(timeout=-1), f"timeout is -1; it must be at least 0 and {INT64}"),
    ({**PROMPT, "deadline_ms": 0}, f"deadline_ms is 0; it must be at least 1 and {INT64}"),
    (sampling(deadline_ms=2**63), f"deadline_ms is 9223372036854775808; it must be at least 1 and {INT64}"),
    # The JSON itself.
    (sampling(**{f"key {i}": 0 for i in range(129)}), "sampling_parameters have 129 keys; there must be at most 128"),
    (sampling(**{"k" * 129: 0}), "sampling_parameters have a key of 129 characters; each must have at most 128"),
    ({**PROMPT, "sampling_parameters": ""}, "sampling_parameters is ''; it must be valid JSON"),
    ({**PROMPT, "sampling_parameters": "{"}, "sampling_parameters is '{'; it must be valid JSON"),
    ({**PROMPT, "sampling_parameters": '{"a":' * 5000}, 'sampling_parameters is \'{"a":{"a":'),
    ({**PROMPT, "sampling_parameters": "[1]"}, "sampling_parameters is [1]; it must be a JSON object"),
    ({**PROMPT, "sampling_parameters": b"\xff{}"}, "sampling_parameters is not valid UTF-8: byte 0 is 0xff"),
]


def mistyped(name: str) -> list[tuple[Fields, str]]:
    """An input with the wrong type, and one with the wrong shape. Triton itself refuses them."""
    prompt = {} if name == "text_input" else PROMPT
    (dim,) = INPUTS[name]["dims"]
    expected = np_to_triton_dtype(dtype(name))
    return [
        (
            {**prompt, name: np.zeros(1, dtype=np.float64)},
            f"inference input '{name}' data-type is 'FP64', but model 'llm' expects '{expected}'",
        ),
        (
            {**prompt, name: np.zeros((2, 2), dtype=dtype(name))},
            f"unexpected shape for input '{name}' for model 'llm'. Expected [{dim}], got [2,2]",
        ),
    ]


CASES = BAD + [case for name in INPUTS for case in mistyped(name)]
WAYS = ["grpc", "http"]
# Long enough that all cases can be tried while a few of these run, one after the other.
GOOD = {"text_input": "Once upon a time", "stream": True, "max_tokens": 40}


async def over_grpc(client: aio.InferenceServerClient, fields: Fields) -> str:
    return (await ask(client, fields)).error or "no error"


async def over_http(http: httpx.AsyncClient, fields: Fields) -> str:
    """Send to the generate endpoint if JSON can represent the fields, otherwise as tensors to `completion`."""
    try:
        reply = await http.post("/v2/models/llm/generate", content=json.dumps(fields))
    except TypeError:
        inputs = tensors(fields, kind=httpclient.InferInput)
        body, json_size = httpclient.InferenceServerClient.generate_request_body(inputs)
        headers = {"Inference-Header-Content-Length": str(json_size)}
        reply = await http.post("/v2/models/completion/infer", content=body, headers=headers)
    return str(reply.json()["error"]) if reply.status_code == 400 else f"no refusal: {reply.status_code} {reply.text}"


@dataclass
class Tried:
    """The errors of the bad requests, by protocol and number of the case, and the answers of the good requests."""

    refusals: dict[tuple[str, int], str]
    good: list[Answer]


async def try_all(client: aio.InferenceServerClient, send: dict[str, Callable[[Fields], Awaitable[str]]]) -> Tried:
    """Try each case over each protocol while a good request streams.

    The good request has its first token before the case is sent, and ends after the case is refused.
    """
    tried = Tried({}, [])
    left = [(way, index) for index in range(len(CASES)) for way in WAYS]
    while left:
        tried.good.append(Answer())
        good = asyncio.create_task(ask(client, GOOD, into=tried.good[-1]))
        while not (tried.good[-1].pieces or good.done()):
            await asyncio.sleep(0.01)
        while left:
            way, index = left[-1]
            refusal = await send[way](CASES[index][0])
            if good.done():
                break  # The good request may have ended before the refusal. Repeat the case with the next one.
            tried.refusals[left.pop()] = refusal
        await good
    return tried


@pytest.fixture(scope="module")
def tried(server: TritonServer) -> Tried:
    def make(client: aio.InferenceServerClient) -> list[Any]:
        async def run() -> Tried:
            async with httpx.AsyncClient(base_url=f"http://{server.http_url}", timeout=60) as http:
                ways = {
                    "grpc": lambda fields: over_grpc(client, fields),
                    "http": lambda fields: over_http(http, fields),
                }
                return await try_all(client, ways)

        return [run()]

    result: Tried = together(server.grpc_url, make)[0]
    return result


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{i}-{says[:30]}" for i, (_, says) in enumerate(CASES)])
def test_message_names_the_fault(tried: Tried, way: str, index: int) -> None:
    fields, says = CASES[index]
    if way == "http" and isinstance(fields.get("stream"), np.ndarray):
        # These cases are sent as tensors, to `completion`, which has no input `stream`.
        says = "unexpected inference input 'stream' for model 'llm'"
    assert says in tried.refusals[way, index].replace("model 'completion'", "model 'llm'")


def test_good_requests_beside_them_are_unharmed(tried: Tried, greedy: Callable[[str, int], str]) -> None:
    right = greedy(GOOD["text_input"], GOOD["max_tokens"])
    assert {(good.error, good.finish_reason, good.text) for good in tried.good} == {(None, "length", right)}


@pytest.mark.parametrize("value", ["[" + "1," * 50_000 + "1]", json.dumps(["京" * 20_000]), "[" * 900 + "]" * 900])
def test_a_long_value_is_cut_so_that_the_message_arrives(server: TritonServer, value: str) -> None:
    """For a plain infer call, gRPC sends the error in a header. Clients limit the length of headers."""
    inputs = tensors({**PROMPT, "sampling_parameters": value})
    with (
        grpcclient.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(
            InferenceServerException, match=r"^\S+ sampling_parameters is \[.*; it must be a JSON object$"
        ) as e,
    ):
        client.infer("completion", inputs)
    assert e.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"text_input": ', "failed to parse the request JSON buffer"),
        ("[1]", "attempt to get members for non-object"),
        ('{"text_input": "a", "max_tokens": "many"}', "attempt to access JSON non-signed-integer as signed-integer"),
        ('{"text_input": "a", "stream": 1}', "attempt to access JSON non-boolean as boolean"),
        ('{"text_input": "a", "max_tokens": [1, 2]}', "can not convert input 'max_tokens' to tensor with proper shape"),
        ('{"text_input": "a", "n": [1]}', "parameter 'n' has invalid type"),
        ('{"text_input": "a", "n": "x"}', "n is 'x'; it must be a whole number"),
    ],
)
def test_what_only_http_can_say(server: TritonServer, body: str, says: str) -> None:
    """Only the last case reaches the model. The other messages are Triton's, and not all of them name the field."""
    reply = httpx.post(f"http://{server.http_url}/v2/models/llm/generate", content=body, timeout=60)
    assert reply.status_code in (400, 500)
    assert says in reply.json()["error"]


def test_parameters_that_cannot_be_read_end_their_request_alone(server: TritonServer) -> None:
    """Triton does not check that the text of a parameter is UTF-8."""
    url = f"http://{server.http_url}/v2/models/llm/generate"
    body = b'{"text_input": "One, two,", "max_tokens": 4, "note": "\xff"}'
    reply = httpx.post(url, content=body, timeout=20)
    assert reply.status_code == 400
    assert "UnicodeDecodeError" in reply.json()["error"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"messages": "[" + " " * 2**24 + "]"}, "messages has 16777218 characters; it must have at most 16777216"),
        (sampling(stop="a" * 2**20), "sampling_parameters has 1048588 characters; it must have at most 1048576"),
    ],
    ids=["messages", "sampling_parameters"],
)
def test_json_is_bounded(server: TritonServer, fields: Fields, says: str) -> None:
    assert one(server.grpc_url, **fields).error == says


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({f"key {i}": 0 for i in range(129)}, "request parameters have 129 keys; there must be at most 128"),
        ({"k" * 129: 0}, "request parameters have a key of 129 characters; each must have at most 128"),
        ({"stop": "a" * 2**20}, "the JSON of all request parameters has 10485"),
    ],
    ids=["keys", "key", "all"],
)
def test_request_parameters_are_bounded(server: TritonServer, parameters: dict[str, object], says: str) -> None:
    async def send(client: aio.InferenceServerClient) -> Answer:
        return await ask(client, PROMPT, parameters=parameters)

    (answer,) = together(server.grpc_url, lambda client: [send(client)])
    assert says in answer.error


def test_unknown_keys_are_logged_so_many_times_and_no_more(server: TritonServer, server_log: list[str]) -> None:
    """Whatever a client calls its keys, it cannot fill the log, nor write lines of its own into it."""
    for batch in range(2):
        keys = {f"{batch} {i}\nE forged": 0 for i in range(100)}
        assert one(server.grpc_url, **sampling(max_tokens=1, **keys)).error is None
    assert eventually(lambda: any(line.endswith("; no other unknown keys will be logged\n") for line in server_log))
    lines = [line for line in server_log if "has the unknown key" in line]
    assert len(lines) == 100
    assert "'0 0\\nE forged'" in "".join(lines)
    assert not any(line.startswith("E forged") for line in server_log)


def test_server_is_well_after_all_this(server: TritonServer) -> None:
    assert one(server.grpc_url, text_input="One, two,", max_tokens=4).error is None
