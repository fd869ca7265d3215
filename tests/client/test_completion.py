"""The model `completion`: a plain `infer` over HTTP or gRPC returns the whole answer."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException


@pytest.fixture(params=["grpc", "http"])
def transport(request: pytest.FixtureRequest, server) -> Iterator[tuple[ModuleType, Any]]:
    if request.param == "grpc":
        client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        yield tritonclient.grpc, client
    else:
        client = tritonclient.http.InferenceServerClient(server.http_url, concurrency=8)
        yield tritonclient.http, client
    client.close()


def infer(transport: tuple[ModuleType, Any], prompt: str, *, model: str = "completion", **options: Any) -> str:
    package, client = transport
    tensor = package.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([prompt.encode()], dtype=np.object_))
    return client.infer(model, [tensor], **options).as_numpy("text_output")[0].decode()


def test_answers_with_the_whole_text(transport) -> None:
    assert infer(transport, "größe 東京") == "größe 東京 "


def test_passes_the_request_on(transport) -> None:
    options = {"parameters": {"top_k": 3, "temperature": 0.25, "stream": True}, "timeout": 7_000_000}
    request = json.loads(infer(transport, "!request", **options))
    assert request["stream"] is False
    assert request["parameters"]["top_k"] == 3
    assert float(request["parameters"]["temperature"]) == 0.25
    assert request["timeout_us"] == 7_000_000


@pytest.mark.parametrize("name", ["cancel", "list_requests"])
def test_a_client_reaches_no_other_function_of_llm(transport, name: str) -> None:
    request = json.loads(infer(transport, "!request", parameters={name: "anything", "top_k": 3}))
    assert name not in request["parameters"]
    assert request["parameters"]["top_k"] == 3


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("DEADLINE_EXCEEDED", {"StatusCode.UNAVAILABLE", "503"}),
        ("INVALID_ARG", {"StatusCode.INVALID_ARGUMENT", "400"}),
        ("UNAVAILABLE", {"StatusCode.UNAVAILABLE", "503"}),
        ("INTERNAL", {"StatusCode.INTERNAL", "500"}),
    ],
)
def test_error_of_llm_keeps_its_code_and_message(transport, code: str, status: set[str]) -> None:
    with pytest.raises(InferenceServerException) as failure:
        infer(transport, f"one !error {code}")
    assert failure.value.status() in status
    assert failure.value.message() == f"failed with {code}"


def test_a_model_that_is_not_loaded_is_unavailable(transport) -> None:
    """So that clients try again: it may be about to be loaded."""
    with pytest.raises(InferenceServerException) as failure:
        infer(transport, "one", model="lone_completion")
    assert failure.value.status() in {"StatusCode.UNAVAILABLE", "503"}
    assert failure.value.message() == "the model not_loaded is not ready"


@pytest.fixture
def grpc_client(server) -> Iterator[tuple[ModuleType, Any]]:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        yield tritonclient.grpc, client


def test_requests_do_not_wait_for_each_other(grpc_client) -> None:
    """A short request that arrives after 63 slow ones, which all take equally long, is answered before any of them."""
    finished: list[str] = []

    def ask(prompt: str) -> str:
        answer = infer(grpc_client, prompt)
        finished.append(answer)
        return answer

    with ThreadPoolExecutor(64) as pool:
        slow = [pool.submit(ask, slow_prompt(number)) for number in range(63)]
        assert pool.submit(ask, "short").result() == "short "
        assert [answer.result() for answer in slow] == [f"{number} " * 20 for number in range(63)]
    assert finished[0] == "short "


def test_too_many_requests_are_refused(grpc_client) -> None:
    def outcome(number: int) -> str:
        try:
            return infer(grpc_client, slow_prompt(number), model="narrow_completion")
        except InferenceServerException as error:
            return error.status()

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(outcome, range(8)))
    assert outcomes.count("StatusCode.UNAVAILABLE") == 6
    assert infer(grpc_client, "one", model="narrow_completion") == "one "


def slow_prompt(number: int) -> str:
    """A prompt whose answer takes one second."""
    return "!gap 50 " + f"{number} " * 20
