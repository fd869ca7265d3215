"""A real tritonserver with a model that echoes prompts, and with `completion` in front of it."""

from collections.abc import Callable, Iterator, Mapping
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
    # For two requests: one that runs and one that waits.
    narrow = {"max_concurrent_requests": "1", "max_queued_requests": "1"}
    add_completion(repository / "narrow_completion", narrow)
    add_completion(repository / "lone_completion", {"generation_model_name": "not_loaded"})
    arguments = ["--backend-config=python,thread-pool-size=128"]
    models = ["llm", "completion", "narrow_completion", "lone_completion"]
    with running_server(repository, models, arguments) as server:
        yield server


def add_completion(folder: Path, parameters: Mapping[str, str]) -> None:
    """Add a `completion` with changed parameters."""
    folder.mkdir()
    (folder / "1").symlink_to(COMPLETION / "1")
    config = text_format.Parse((COMPLETION / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    for name, value in parameters.items():
        config.parameters[name].string_value = value
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
