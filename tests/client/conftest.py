"""A real tritonserver with a model that echoes prompts, and with `completion` in front of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from inflight_client import Client, RetryPolicy
from scripts.launch.triton_server import TritonServer
from tests.client.blocking import Blocking
from tests.running_server import running_server

ECHO = Path(__file__).parent / "model_repository" / "llm"
COMPLETION = Path(__file__).parents[2] / "model_repository" / "completion"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("models")
    (repository / "llm").symlink_to(ECHO)
    (repository / "completion").symlink_to(COMPLETION)
    add_narrow_completion(repository / "narrow_completion")
    arguments = ["--backend-config=python,thread-pool-size=128"]
    with running_server(repository, ["llm", "completion", "narrow_completion"], arguments) as server:
        yield server


def add_narrow_completion(folder: Path) -> None:
    """Add a `completion` for two requests: one that runs and one that waits."""
    folder.mkdir()
    (folder / "1").symlink_to(COMPLETION / "1")
    config = text_format.Parse((COMPLETION / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    config.parameters["max_concurrent_requests"].string_value = "1"
    config.parameters["max_queued_requests"].string_value = "1"
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))


CONNECT: dict[str, Callable[..., Any]] = {
    "grpc": lambda server, **options: Client(server.grpc_url, **options),
    "http": lambda server, **options: Client(f"http://{server.http_url}", **options),
    "async grpc": lambda server, **options: Blocking(server.grpc_url, **options),
    "async http": lambda server, **options: Blocking(f"http://{server.http_url}", **options),
}


@pytest.fixture(params=CONNECT)
def connect(request: pytest.FixtureRequest, server: TritonServer) -> Callable[..., Any]:
    """Creates a client with options, for each of the four combinations of protocol and client class."""
    return lambda **options: CONNECT[request.param](server, **options)


@pytest.fixture
def client(connect: Callable[..., Any]) -> Iterator[Any]:
    """A client without retries."""
    with connect(retry=RetryPolicy(attempts=1)) as client:
        yield client
