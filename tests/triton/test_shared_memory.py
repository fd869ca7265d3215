"""In a container whose /dev/shm is too small, every request still ends, and the server goes on."""

import contextlib
import copy
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from inflight_client import Client, RetryPolicy, ServerFault
from scripts.launch.model_repository import MODEL_REPOSITORY
from scripts.launch.triton_server import TritonServer
from scripts.reference.tiny_models import SERVED, save_model
from tests.eventually import eventually
from tests.triton.conftest import add_llm
from tests.triton.prometheus import scrape

# Each model takes a megabyte when it is loaded.
SIZE = "4m"
SMALL = {"max_tokens": 3, "ignore_eos": True}
# 16 samples of 120 tokens with 20 log-probabilities each are more than 3 MB of JSON.
LARGE = {"max_tokens": 120, "ignore_eos": True, "n": 16, "logprobs": 20, "temperature": 1.0}
IN_A_SMALL_PLACE = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    f'mount -t tmpfs -o size={SIZE} tmpfs /dev/shm && exec "$@"',
    "sh",
]
LOG: list[str] = []
"""What the server has written."""


class SmallServer(TritonServer):
    """A server with a /dev/shm of its own."""

    def _launch(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._launch()
        return [*IN_A_SMALL_PLACE, *command], environment

    @property
    def shared_memory(self) -> Path:
        """Its /dev/shm, as seen from outside."""
        return Path(f"/proc/{self.pid}/root/dev/shm")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    if subprocess.run([*IN_A_SMALL_PLACE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    folder = tmp_path_factory.mktemp("llama")
    config = copy.deepcopy(SERVED["llama"].config)
    config.max_position_embeddings = 4096
    save_model(config, folder)
    repository = tmp_path_factory.mktemp("repository")
    add_llm(repository, "llm", "config.pbtxt", {"model": str(folder), "dtype": "float32", "kv_cache_tokens": "4096"})
    (repository / "completion").symlink_to(MODEL_REPOSITORY / "completion")
    with SmallServer(repository, log=LOG.append) as running:
        running.wait_ready(120, ["llm", "completion"])
        yield running
        running.kill()


@pytest.fixture
def client(server: SmallServer) -> Iterator[Client]:
    with Client(server.grpc_url, retry=RetryPolicy(attempts=1)) as client:
        yield client


@pytest.fixture
def full(server: SmallServer) -> Iterator[None]:
    """Another process has filled the rest of the shared memory."""
    ballast = server.shared_memory / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    ballast.unlink()


def at_rest(server: SmallServer) -> bool:
    found = scrape(server)
    return found.get("num_requests_running") == found.get("num_requests_waiting") == 0


@pytest.mark.usefixtures("server")
def test_the_log_says_at_load_how_much_is_missing() -> None:
    says = "a whole answer of 4096 tokens with 20 log-probabilities each takes 8.6 MiB, and n samples n times as much"
    assert any("MiB free" in line and says in line for line in LOG)


def test_an_answer_that_does_not_fit_becomes_an_error(server: SmallServer, client: Client) -> None:
    for _ in range(2):
        with pytest.raises(ServerFault, match="could not be sent: Failed to increase the shared memory pool size"):
            client.generate([5, 6, 7], timeout=20, **LARGE)
        assert len(client.generate([5, 6, 7], **SMALL).token_ids) == 3
    assert eventually(lambda: at_rest(server))


def test_whole_answers_of_completion_end_wherever_there_is_no_room(server: SmallServer) -> None:
    """An answer goes through the memory of `llm`, then through that of `completion`, twice."""
    url = f"http://{server.http_url}/v2/models/completion/generate"
    errors = []
    for max_tokens in (5, 10, 20, 30, 45, 60, 90, 120):
        large = {**LARGE, "max_tokens": max_tokens, "return_logprobs": True}
        reply = httpx.post(url, json={"input_ids": [5, 6, 7], **large}, timeout=20)
        errors += [reply.json()["error"]] if reply.is_error else []
    print(*[e[:150] for e in errors], sep="\n")
    assert any("shared memory" in error for error in errors), errors
    assert httpx.post(url, json={"input_ids": [5, 6, 7], **SMALL}, timeout=20).status_code == 200


@pytest.mark.usefixtures("full")
def test_with_no_memory_left_small_answers_and_errors_are_still_sent(server: SmallServer, client: Client) -> None:
    for _ in range(3):
        with client.stream([5, 6, 7], **SMALL) as stream:
            assert len(stream.completion().text) == 0
        assert len(client.generate([5, 6, 7], **SMALL).token_ids) == 3
        with pytest.raises(ServerFault, match="could not be sent"):
            client.generate([5, 6, 7], timeout=20, **LARGE)
    assert eventually(lambda: at_rest(server))
