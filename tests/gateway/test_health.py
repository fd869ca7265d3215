"""GET /health tells whether the model serves requests, not whether Triton runs."""

import signal
import time
from pathlib import Path

import httpx
import pytest

from inflight_client import Client
from scripts.launch.triton_server import TritonServer
from tests.client.conftest import ECHO
from tests.eventually import eventually
from tests.gateway.gateway_process import GatewayProcess
from tests.processes import children
from tests.running_server import running_server


def test_a_gateway_is_not_healthy_without_the_models_process(tmp_path: Path) -> None:
    (tmp_path / "llm").symlink_to(ECHO)
    # This model has no guardian, so the server goes on without it.
    with running_server(tmp_path, ["llm"]) as server, GatewayProcess(server.grpc_url) as gateway:
        gateway.wait_for(["/health"], 30)
        (model,) = children(server.pid)
        model.send(signal.SIGKILL)
        assert eventually(lambda: httpx.get(f"{gateway.url}/health").status_code == 503)
        assert "not healthy" in httpx.get(f"{gateway.url}/health").json()["error"]["message"]
        assert httpx.get(f"http://{server.http_url}/v2/models/llm/ready").status_code == 200


def test_the_model_is_asked_at_most_once_a_second(gateway: GatewayProcess, server: TritonServer) -> None:
    with Client(server.grpc_url, metrics_url=server.metrics_url) as client, httpx.Client() as prober:

        def executions() -> float:
            return client.metrics().value("nv_inference_exec_count", model="llm")

        before, started = executions(), time.monotonic()
        for _ in range(50):
            assert prober.get(f"{gateway.url}/health").status_code == 200
        assert executions() - before <= time.monotonic() - started + 1


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_probes_may_ask_for_the_head_alone(gateway: GatewayProcess, path: str) -> None:
    head, whole = (httpx.request(method, gateway.url + path) for method in ("HEAD", "GET"))
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["Content-Type"] == whole.headers["Content-Type"]
