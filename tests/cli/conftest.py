"""The program `inflight`, and the real tritonserver of the client's tests that it connects to."""

from collections.abc import Callable, Iterator

import pytest

from inflight_client import Client
from scripts.launch.triton_server import TritonServer
from tests.cli.program import Program
from tests.client.conftest import server  # noqa: F401  # The import makes it a fixture of these tests too.


@pytest.fixture
def program(server: TritonServer) -> Program:  # noqa: F811
    return Program(server.grpc_url)


@pytest.fixture
def client(server: TritonServer) -> Iterator[Client]:  # noqa: F811
    with Client(server.grpc_url, metrics_url=server.metrics_url) as client:
        yield client


@pytest.fixture
def arrived(client: Client) -> Callable[[], int]:
    """Returns the number of requests that have reached the model since the test began."""

    def count() -> int:
        return int(client.metrics().value("nv_inference_exec_count", model="llm"))

    before = count()
    return lambda: count() - before
