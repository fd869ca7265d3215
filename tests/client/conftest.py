"""A real tritonserver over a model that echoes, and over `completion` in front of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from inflight_client import Client
from scripts.triton_server import TritonServer

ECHO = Path(__file__).parent / "model_repository" / "llm"
COMPLETION = Path(__file__).parents[2] / "model_repository" / "completion"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("models")
    (repository / "llm").symlink_to(ECHO)
    (repository / "completion").symlink_to(COMPLETION)
    add_narrow_completion(repository / "narrow_completion")
    arguments = ["--backend-config=python,thread-pool-size=128"]
    with TritonServer(repository, arguments=arguments, drain_seconds=2) as server:
        server.wait_ready(60, ["llm", "completion", "narrow_completion"])
        yield server


def add_narrow_completion(folder: Path) -> None:
    """`completion` with places for two requests, one of them waiting."""
    folder.mkdir()
    (folder / "1").symlink_to(COMPLETION / "1")
    config = text_format.Parse((COMPLETION / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    config.parameters["max_concurrent_requests"].string_value = "1"
    config.parameters["max_queued_requests"].string_value = "1"
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))


@pytest.fixture
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.grpc_url) as client:
        yield client
