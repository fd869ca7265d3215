"""Certificates and headers from the command line reach a server that requires them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from scripts.launch.triton_server import TritonServer
from tests.cli.program import Program
from tests.client.conftest import ECHO
from tests.running_server import running_server

KEY = "0123456789"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[TritonServer]:
    """A server with encrypted gRPC that requires a header."""
    folder = tmp_path_factory.mktemp("guarded")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.pem")
    repository = folder / "models"
    repository.mkdir()
    (repository / "llm").symlink_to(ECHO)
    arguments = [
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={folder / 'server.pem'}",
        f"--grpc-server-key={folder / 'key.pem'}",
        f"--grpc-restricted-protocol=inference:key={KEY}",
    ]
    with running_server(repository, ["llm"], arguments) as server:
        yield server


def test_certificate_and_header(guarded: TritonServer, authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    program = Program(guarded.grpc_url)
    trusting = ["generate", "one", "--ca", str(tmp_path / "ca.pem")]
    header = f"triton-grpc-protocol-key={KEY}"
    done = program.run(*trusting, "--header", header)
    assert (done.returncode, done.stdout) == (0, "one \n")
    done = program.run(*trusting)
    assert done.returncode == 1
    assert "restricted" in done.stderr
    assert program.run("generate", "one", "--url", f"grpcs://{guarded.grpc_url}", "--header", header).returncode == 1
