"""Clients beside OpenAI's work unchanged: `make test-clients`, which installs them into an environment of their own."""

import hashlib
import os
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.launch.cache import build_once, cache_root
from scripts.launch.default_model import default_model
from scripts.launch.model_repository import render_repository
from scripts.launch.shell import run
from scripts.launch.wheels import pinned_all
from tests.gateway import other_clients
from tests.gateway.gateway_process import GatewayProcess
from tests.running_server import running_server

pytestmark = pytest.mark.skipif(
    "INFLIGHT_TEST_CLIENTS" not in os.environ, reason="the clients are heavy; `make test-clients` tests them"
)


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of an environment with the clients."""

    def build(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        run([str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", *wanted])

    wanted = pinned_all("clients")
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
    return build_once(cache_root() / f"clients-{digest}", build) / "bin/python"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    repository = render_repository(
        tmp_path_factory.mktemp("repository") / "models",
        parameters={"model": str(default_model()), "kv_cache_tokens": "16384"},
    )
    with running_server(repository, ["llm"]) as server, GatewayProcess(server.grpc_url) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.mark.parametrize("client", sorted(other_clients.CLIENTS))
def test_a_client_works_unchanged(python: Path, gateway: GatewayProcess, client: str) -> None:
    command = [str(python), other_clients.__file__, client, f"{gateway.url}/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
