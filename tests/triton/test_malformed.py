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

from load_tests.storm.malformed import BAD, PROMPT, sampling
from load_tests.tensors import INPUTS, dtype, tensors
from scripts.launch.triton_server import TritonServer
from tests.eventually import eventually
from tests.triton.wire import Answer, Fields, ask, one, together


def mistyped(name: str) -> list[tuple[Fields, str]]:
    """An input with the wrong type, and one with the wrong shape. Triton itself refuses them."""
    prompt = {} if name == "text_input" else PROMPT
    dims = INPUTS[name]["dims"]
    shape = [2] * (len(dims) + 1)
    wanted, got = ("[" + ",".join(map(str, each)) + "]" for each in (dims, shape))
    expected = np_to_triton_dtype(dtype(name))
    return [
        (
            {**prompt, name: np.zeros([1] * len(dims), dtype=np.float64)},
            f"inference input '{name}' data-type is 'FP64', but model 'llm' expects '{expected}'",
        ),
        (
            {**prompt, name: np.zeros(shape, dtype=dtype(name))},
            f"unexpected shape for input '{name}' for model 'llm'. Expected {wanted}, got {got}",
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
