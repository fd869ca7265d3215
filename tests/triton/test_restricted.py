"""Interfaces that name files, load code or give access to memory are for the operator alone."""

from collections.abc import Callable

import httpx
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from scripts.launch.exposure import OPERATOR_HEADER
from scripts.launch.triton_server import TritonServer

HTTP = [
    ("GET", "/v2/logging"),
    ("POST", "/v2/logging"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/models/llm/trace/setting"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("POST", "/v2/systemsharedmemory/region/a/register"),
    ("GET", "/v2/cudasharedmemory/status"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/llm/load"),
    ("POST", "/v2/repository/models/llm/unload"),
]
Client = grpcclient.InferenceServerClient
GRPC: list[Callable[[Client], object]] = [
    Client.get_log_settings,
    Client.get_trace_settings,
    Client.get_system_shared_memory_status,
    Client.get_cuda_shared_memory_status,
    Client.get_model_repository_index,
    lambda client: client.register_system_shared_memory("a", "/a", 10),
    lambda client: client.load_model("llm"),
    lambda client: client.unload_model("llm"),
    lambda client: client.update_log_settings({"log_file": "a"}),
]


@pytest.mark.parametrize(("method", "path"), HTTP)
def test_http_needs_the_operators_key(server: TritonServer, method: str, path: str) -> None:
    url = f"http://{server.http_url}{path}"
    for headers in ({}, {OPERATOR_HEADER: "guessed"}):
        reply = httpx.request(method, url, headers=headers)
        assert reply.status_code == 403
        assert "restricted" in reply.text


def test_the_operator_has_the_key(server: TritonServer) -> None:
    reply = httpx.get(f"http://{server.http_url}/v2/logging", headers=server.operator_headers)
    assert reply.json()["log_file"] == ""


@pytest.mark.parametrize("call", GRPC)
def test_grpc_needs_the_operators_key(server: TritonServer, call: Callable[[Client], object]) -> None:
    with Client(server.grpc_url) as client, pytest.raises(InferenceServerException, match="restricted"):
        call(client)
