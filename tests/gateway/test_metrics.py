"""The gateway's metrics count its requests, with a bounded number of labels."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from prometheus_client import generate_latest
from starlette.types import Message, Receive, Scope, Send

from inflight_client.metrics import MetricsSnapshot, parse_metrics
from inflight_gateway.metrics import Measure, Metrics
from scripts.launch.triton_server import TritonServer
from tests.eventually import eventually
from tests.gateway.gateway_process import GatewayProcess


@pytest.fixture
def gateway(server: TritonServer) -> Iterator[GatewayProcess]:
    """A gateway that no other test uses."""
    with GatewayProcess(server.grpc_url) as gateway:
        gateway.wait_for(["/v1/models"], 30)
        yield gateway


def test_those_of_the_model_are_there_too(server: TritonServer) -> None:
    """Routers scrape the port to which they send requests."""
    with GatewayProcess(server.grpc_url, f"--metrics-url={server.metrics_url}") as gateway:
        gateway.wait_for(["/health"], 30)
        with gateway.openai() as client:
            client.completions.create(model="llm", prompt="one two three")
        found = metrics(gateway)
        assert found.value("inflight_gateway_model_metrics_up") == 1
        assert found.value("nv_inference_exec_count", model="llm") > 0


def test_without_them_those_of_the_gateway_are_there(server: TritonServer) -> None:
    with GatewayProcess(server.grpc_url, "--metrics-url=http://127.0.0.1:9/metrics") as gateway:
        gateway.wait_for(["/health"], 30)
        found = metrics(gateway)
        assert found.value("inflight_gateway_model_metrics_up") == 0
        assert list(found.select("inflight_gateway_server_metrics_up")) == []
        assert found.value("inflight_gateway_requests_in_flight", endpoint="/metrics") == 1


def test_with_several_servers_it_tells_which_of_them_is_gone(server: TritonServer) -> None:
    gone = "--server=127.0.0.1:9", "--metrics-url=http://127.0.0.1:9/metrics"
    with GatewayProcess(server.grpc_url, f"--metrics-url={server.metrics_url}", *gone) as gateway:
        gateway.wait_for(["/health"], 30)
        found = metrics(gateway)
    assert found.value("inflight_gateway_model_metrics_up") == 1
    up = {sample.labels["server"]: sample.value for sample in found.select("inflight_gateway_server_metrics_up")}
    assert up == {f"127.0.0.1:{server.metrics_port}": 1, "127.0.0.1:9": 0}
    assert found.select("nv_inference_exec_count", model="llm", server=f"127.0.0.1:{server.metrics_port}")


def metrics(gateway: GatewayProcess) -> MetricsSnapshot:
    return parse_metrics(httpx.get(f"{gateway.url}/metrics").text)


def count(gateway: GatewayProcess, endpoint: str, status: int) -> float:
    name = "inflight_gateway_requests_total"
    return sum(sample.value for sample in metrics(gateway).select(name, endpoint=endpoint, status=str(status)))


def test_requests_tokens_and_times(gateway: GatewayProcess, client: OpenAI) -> None:
    client.completions.create(model="llm", prompt="one two three")
    list(client.completions.create(model="llm", prompt="one two", stream=True))
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="llm", prompt="")
    with pytest.raises(openai.APIError):
        list(client.completions.create(model="llm", prompt="one !error INTERNAL", stream=True))
    now = metrics(gateway)
    endpoint: dict[str, Any] = {"endpoint": "/v1/completions"}
    for status, expected in ((200, 2), (400, 1), (500, 1)):
        assert now.value("inflight_gateway_requests_total", status=str(status), **endpoint) == expected
    assert now.value("inflight_gateway_tokens_total", kind="prompt") == 5
    assert now.value("inflight_gateway_tokens_total", kind="completion") == 5
    assert now.value("inflight_gateway_time_to_first_token_seconds_count") == 2
    assert now.value("inflight_gateway_request_duration_seconds_count", **endpoint) == 4


def test_failures_are_counted_from_zero() -> None:
    """A counter that appears with its first failure does not rise, so no alert would see that."""
    shown = parse_metrics(generate_latest(Metrics().registry).decode())
    generating = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    for path in (*generating, "/v1/embeddings", "/classify", "/v1/score", "/v1/rerank", "/v2/rerank"):
        for status in ("429", "500", "503", "504"):
            assert shown.value("inflight_gateway_requests_total", endpoint=path, status=status) == 0


def test_requests_in_flight_and_clients_that_leave(gateway: GatewayProcess, client: OpenAI) -> None:
    path = "/v1/chat/completions"

    def in_flight() -> float:
        return metrics(gateway).value("inflight_gateway_requests_in_flight", endpoint=path)

    messages: Any = [{"role": "user", "content": "!gap 10 !forever"}]
    with client.chat.completions.create(model="llm", messages=messages, stream=True) as stream:
        next(stream)
        assert in_flight() == 1
    assert eventually(lambda: count(gateway, path, 499) == 1)
    assert in_flight() == 0
    assert count(gateway, path, 200) == 0


def test_paths_of_clients_do_not_become_labels(gateway: GatewayProcess) -> None:
    for number in range(20):
        httpx.get(f"{gateway.url}/{number}")
        httpx.get(f"{gateway.url}/v1/models/{number}")
    assert count(gateway, "other", 404) == 20
    assert count(gateway, "/v1/models/{model}", 404) == 20
    counted = metrics(gateway).select("inflight_gateway_requests_total")
    endpoints = {sample.labels["endpoint"] for sample in counted if sample.value}
    assert endpoints == {"/v1/models", "/v1/models/{model}", "/metrics", "other"}


def test_a_request_that_raises_counts_as_500_and_its_seconds_are_those_that_passed() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise KeyError("delta")

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        pass

    found = Metrics()
    scope: Scope = {"type": "http", "path": "/v1/completions"}
    begun = time.perf_counter()
    with pytest.raises(KeyError):
        asyncio.run(Measure(broken, found)(scope, receive, send))
    passed = time.perf_counter() - begun
    shown = parse_metrics(generate_latest(found.registry).decode())
    assert shown.value("inflight_gateway_requests_total", endpoint="/v1/completions", status="500") == 1
    assert 0 < shown.value("inflight_gateway_request_duration_seconds_sum", endpoint="/v1/completions") <= passed
