"""Encryption, and servers that require a header."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from inflight_client import TLS, AccessDenied, Client, RetryPolicy, TransportError
from scripts.launch.triton_server import TritonServer
from tests.client.blocking import Blocking
from tests.client.conftest import ECHO
from tests.running_server import running_server

ONCE = RetryPolicy(attempts=1)
KEY = "0123456789"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate authority, and the certificates that it signed for the server and for a client."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client@example.org")
    files = {name: folder / f"{name}.pem" for name in ("ca", "server_key", "server", "client_key", "client")}
    authority.cert_pem.write_to_path(files["ca"])
    for name, certificate in (("server", server), ("client", client)):
        certificate.private_key_pem.write_to_path(files[f"{name}_key"])
        certificate.cert_chain_pems[0].write_to_path(files[name])
    return files


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, certificates: dict[str, Path]) -> Iterator[TritonServer]:
    """A server that requires a client certificate and a header over gRPC, and the header over HTTP."""
    repository = tmp_path_factory.mktemp("models")
    (repository / "llm").symlink_to(ECHO)
    arguments = [
        "--grpc-use-ssl=true",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={certificates['server']}",
        f"--grpc-server-key={certificates['server_key']}",
        f"--grpc-root-cert={certificates['ca']}",
        f"--grpc-restricted-protocol=inference:key={KEY}",
        f"--http-restricted-api=inference:key={KEY}",
    ]
    with running_server(repository, ["llm"], arguments) as server:
        yield server


@pytest.fixture(scope="module")
def https_url(guarded: TritonServer, certificates: dict[str, Path]) -> Iterator[str]:
    """Triton has no HTTPS. This proxy terminates TLS in front of it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates["server"], certificates["server_key"])

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", guarded.http_port)
        await asyncio.gather(pipe(reader, to_writer), pipe(to_reader, writer), return_exceptions=True)

    async def serve() -> None:
        server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()
        async with server:
            await stop.wait()

    ports: list[int] = []
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    started.wait(10)
    yield f"https://127.0.0.1:{ports[0]}"
    loop.call_soon_threadsafe(stop.set)
    thread.join()


@pytest.mark.parametrize("kind", [Client, Blocking])
def test_grpc(guarded: TritonServer, certificates: dict[str, Path], kind: Any) -> None:
    identity = {"private_key": certificates["client_key"], "certificate_chain": certificates["client"]}
    tls = TLS(root_certificates=certificates["ca"], **identity)
    header = {"Triton-Grpc-Protocol-Key": KEY}
    with kind(guarded.grpc_url, tls=tls, headers=header) as client:
        assert client.generate("one two").text == "one two "
    with kind(f"grpcs://{guarded.grpc_url}", tls=tls, retry=ONCE) as client, pytest.raises(AccessDenied, match="key"):
        client.generate("one")
    with (
        kind(f"grpcs://{guarded.grpc_url}", headers=header, retry=ONCE) as client,
        pytest.raises(TransportError, match=r"(?i)ssl|certificate|handshake"),
    ):
        client.generate("one")
    with kind(guarded.grpc_url, headers=header, retry=ONCE) as client, pytest.raises(TransportError):
        client.generate("one")


@pytest.mark.parametrize("kind", [Client, Blocking])
def test_http(https_url: str, certificates: dict[str, Path], kind: Any) -> None:
    tls = TLS(root_certificates=certificates["ca"])
    with kind(https_url, tls=tls, headers={"key": KEY}) as client:
        assert client.generate("one two").text == "one two "
    with kind(https_url, tls=tls, headers={"key": "another"}, retry=ONCE) as client, pytest.raises(AccessDenied):
        client.generate("one")
    with kind(https_url, retry=ONCE) as client, pytest.raises(TransportError, match=r"(?i)certificate"):
        client.generate("one")


def test_settings_that_contradict_each_other(certificates: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="go together"):
        TLS(private_key=certificates["client_key"])
    with pytest.raises(ValueError, match="not encrypted"):
        Client("http://127.0.0.1:8000", tls=TLS())
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Client("grpcs://127.0.0.1:8001", tls=TLS(root_certificates=Path("nowhere")))
