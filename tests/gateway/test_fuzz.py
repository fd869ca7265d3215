"""Any request to a gateway before a real model is answered as documented, and a stream beside it is exact."""

import copy
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from openai import OpenAI
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from scripts.launch.model_repository import render_repository
from tests.fuzz_profiles import fuzzing
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_openapi import APP, forget_bound_of_inputs
from tests.running_server import running_server

pytestmark = pytest.mark.slow

PAGE = copy.deepcopy(APP.openapi())
for request in ("CompletionRequest", "ChatRequest", "EmbeddingRequest"):
    fields = PAGE["components"]["schemas"][request]
    fields["properties"]["model"] = {"const": "llm"}
    if request == "EmbeddingRequest":
        continue
    # Otherwise most answers would be as long and as many as possible.
    fields["properties"]["n"] = {"enum": [None, 1, 2]}
    fields["properties"]["max_tokens"] = {"enum": [1, 5, 2**31 - 1]}
    fields["required"] = [*fields["required"], "max_tokens"]
forget_bound_of_inputs(PAGE)
# These are chats under other names, and take a minute here; test_openapi.py sends them to the echo model.
schema = schemathesis.openapi.from_dict(PAGE).exclude(
    path=["/v1/responses", "/v1/messages", "/v1/messages/count_tokens"]
)


@pytest.fixture(scope="module")
def gateway(first_layers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """The cache is so small that requests soon end, and that they preempt each other."""
    repository = render_repository(
        tmp_path_factory.mktemp("repository") / "models",
        parameters={"model": str(first_layers), "dtype": "float32", "kv_cache_tokens": "128"},
    )
    with (
        running_server(repository, ["llm"]) as server,
        GatewayProcess(server.grpc_url, f"--metrics-url={server.metrics_url}") as gateway,
    ):
        gateway.wait_for(["/health"], 30)
        yield gateway


def streamed(client: OpenAI) -> str:
    stream = client.completions.create(
        model="llm", prompt="One, two, three,", temperature=0, max_tokens=16, stream=True
    )
    return "".join(chunk.choices[0].text for chunk in stream)


@pytest.fixture(scope="module", autouse=True)
def streams_beside(gateway: GatewayProcess) -> Iterator[None]:
    """While the tests of this file run, one stream follows the other. Each must be the one that ran alone."""
    over = threading.Event()
    texts: list[str] = []

    def run() -> None:
        while not over.is_set():
            texts.append(streamed(client))

    with gateway.openai() as client:
        alone = streamed(client)
        beside = threading.Thread(target=run)
        beside.start()
        yield
        over.set()
        beside.join(60)
        assert not beside.is_alive()
    assert texts
    assert set(texts) == {alone}


@schema.parametrize()
@fuzzing()
def test_answers_are_as_documented(case: schemathesis.Case, gateway: GatewayProcess) -> None:
    # Which requests are refused is tested in test_openapi.py. Here the schema asks for more than the gateway does.
    unchecked = [positive_data_acceptance, negative_data_rejection]
    response = case.call_and_validate(base_url=gateway.url, excluded_checks=unchecked, timeout=120)
    assert response.status_code < 500
