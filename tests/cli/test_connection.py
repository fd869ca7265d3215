"""Certificates and headers from the command line reach a server that requires them. Others are refused."""

import argparse
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from inflight_cli.errors import CommandError
from inflight_cli.options import check_one_server
from inflight_client import AsyncClient, Client
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


@pytest.mark.parametrize(("header", "message"), [("a b=c", "name 'a b'"), ("authorization=a\nsecret", "of the header")])
def test_headers_that_cannot_be_sent(header: str, message: str) -> None:
    done = Program("127.0.0.1:1").run("generate", "one", "--header", header)
    assert done.returncode == 2
    assert message in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("header", [{"a b": "c"}, {"": "c"}, {"a": "b\n"}, {"a": "ä"}])
def test_clients_refuse_headers_that_cannot_be_sent(kind: Any, header: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"header .* must consist of"):
        kind("127.0.0.1:1", headers=header)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"], None])
def test_a_name_of_several_servers_is_not_one(monkeypatch: pytest.MonkeyPatch, addresses: list[str] | None) -> None:
    real = socket.getaddrinfo

    def resolve(host: str, port: Any, *args: Any, **options: Any) -> Any:
        if addresses is None:
            raise socket.gaierror("no such name")
        return [entry for ip in addresses for entry in real(ip, port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    options = argparse.Namespace(url="fleet.test:8001", connection={"tls": None})
    if addresses is None or len(addresses) == 1:
        check_one_server(options)
    else:
        with pytest.raises(CommandError, match=r"has the addresses 127\.0\.0\.1:8001, 127\.0\.0\.2:8001"):
            check_one_server(options)
