"""Any fields over gRPC and HTTP are answered or refused, without internal errors, and a stream beside them is exact."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import TRITON_RESERVED_REQUEST_PARAMS

from load_tests.tensors import INPUTS, dtype
from scripts.launch.triton_server import TritonServer
from serving.fields import FIELDS
from tests.fuzz_profiles import fuzzing
from tests.triton.prometheus import scrape
from tests.triton.wire import Fields, ask, together

BESIDE = {"text_input": "One, two, three,", "max_tokens": 8, "stream": True}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
# The tensor `max_tokens`, which comes first of all its sources, keeps the answers short.
max_tokens = st.sampled_from([0, 1, 5, 2**31 - 1])
names = st.sampled_from([name for field in FIELDS for name in field.names]) | st.text(max_size=10)
messages = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "<|"]), "content": st.text()}))
elements = {
    np.dtype(np.object_): st.binary(max_size=12) | st.text(max_size=12).map(str.encode),
    np.dtype(np.int32): st.integers(-2, 50_000) | st.integers(-(2**31), 2**31 - 1),
    np.dtype(np.uint64): st.integers(0, 2**64 - 1),
    np.dtype(np.float16): st.floats(-3, 3, width=16) | st.floats(width=16),
    np.dtype(np.float32): st.floats(-3, 3, width=32) | st.floats(width=32),
    np.dtype(np.bool_): st.booleans(),
}


def tensor(name: str) -> st.SearchStrategy[Any]:
    """Values of an input: mostly as many as it takes, and one row if it takes several."""
    kind = np.dtype(dtype(name))
    rows = [1] * (len(INPUTS[name]["dims"]) - 1)
    sizes = st.sampled_from([1, 1, 1, 0, 2, 3])
    return sizes.flatmap(lambda n: st.lists(elements[kind], min_size=n, max_size=n)).map(
        lambda values: np.array(values, dtype=kind).reshape(*rows, len(values))
    )


def texts_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return values.map(json.dumps)


tensors = st.fixed_dictionaries(
    {"max_tokens": max_tokens},
    optional={
        **{name: tensor(name) for name in INPUTS if name != "max_tokens"},
        "sampling_parameters": texts_of(st.dictionaries(names, json_values, max_size=5)),
        "messages": texts_of(messages | json_values),
        "text_input": st.text(max_size=30),
    },
)
# tritonclient itself refuses these names.
sent_as_parameter = names.filter(lambda name: name not in TRITON_RESERVED_REQUEST_PARAMS)
parameters = st.dictionaries(
    sent_as_parameter, st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20), max_size=3
)
requests = st.lists(st.tuples(tensors, parameters), min_size=1, max_size=4)
bodies = st.fixed_dictionaries(
    {"max_tokens": max_tokens},
    optional={
        "text_input": st.text(min_size=1, max_size=20),
        **{name: json_values for name in INPUTS if name != "max_tokens"},
    },
).flatmap(lambda body: st.dictionaries(names, json_values, max_size=3).map(lambda others: {**others, **body}))


def internal_errors(server: TritonServer) -> float:
    return scrape(server).by("request_refused_total", "reason").get("error", 0)


@pytest.fixture(scope="module", autouse=True)
def no_internal_errors(server: TritonServer) -> Any:
    before = internal_errors(server)
    yield
    assert internal_errors(server) == before


@given(asked=requests)
@fuzzing()
def test_over_grpc(server: TritonServer, greedy: Callable[[str, int], str], asked: list[tuple[Fields, Fields]]) -> None:
    def make(client: Any) -> list[Any]:
        return [ask(client, BESIDE), *(ask(client, fields, parameters=given) for fields, given in asked)]

    beside, *answers = together(server.grpc_url, make)
    assert (beside.text, beside.error) == (greedy(BESIDE["text_input"], BESIDE["max_tokens"]), None)
    assert all(answer.error or answer.finish_reason in ("stop", "length", "deadline") for answer in answers)


@given(sent=st.lists(bodies, min_size=1, max_size=4))
@fuzzing()
def test_over_http(server: TritonServer, greedy: Callable[[str, int], str], sent: list[dict[str, Any]]) -> None:
    async def post(http: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
        return await http.post("/v2/models/llm/generate", content=json.dumps(body))

    def make(client: Any) -> list[Any]:
        async def all_of_them() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=f"http://{server.http_url}", timeout=60) as http:
                return await asyncio.gather(*(post(http, body) for body in sent))

        return [ask(client, BESIDE), all_of_them()]

    beside, replies = together(server.grpc_url, make)
    assert (beside.text, beside.error) == (greedy(BESIDE["text_input"], BESIDE["max_tokens"]), None)
    for reply in replies:
        # Triton itself answers 500 to some values that are not of an input's type.
        assert reply.status_code in (200, 400, 500)
        assert ("text_output" if reply.status_code == 200 else "error") in reply.json()
