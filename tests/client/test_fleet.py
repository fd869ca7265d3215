"""Several real servers behind one client."""

import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from inflight_client import Client, RetryPolicy, ServerOverloaded, TransportError
from inflight_client.fleet.balance import PrefixAffinity
from inflight_client.fleet.server import Server
from inflight_client.metrics import parse_metrics
from inflight_client.request import make_request
from scripts.launch.triton_server import TritonServer
from tests.client.blocking import Blocking
from tests.client.conftest import ECHO
from tests.eventually import eventually
from tests.gateway.gateway_process import GatewayProcess

ONCE = RetryPolicy(attempts=1)
LONG = "word " * 100


def echo(folder: Path, name: str, **options: Any) -> TritonServer:
    (folder / name).mkdir(exist_ok=True)
    if not (folder / name / "llm").exists():
        (folder / name / "llm").symlink_to(ECHO)
    return TritonServer(folder / name, environment={"ECHO_NAME": name}, **options)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TritonServer]]:
    folder = tmp_path_factory.mktemp("echoes")
    with ExitStack() as stack:
        one = stack.enter_context(echo(folder, "one"))
        # The same port at another address, as servers behind one name have it.
        two = stack.enter_context(echo(folder, "two", grpc_port=one.grpc_port, arguments=["--grpc-address=127.0.0.2"]))
        found = [one, two]
        for server in found:
            server.wait_ready(60, ["llm"])
        yield found
        for server in found:
            server.kill()


def grpc_urls(servers: list[TritonServer]) -> str:
    one, two = servers
    return (
        f"{one.grpc_url},127.0.0.2:{two.grpc_port}"
        if one.grpc_port == two.grpc_port
        else f"{one.grpc_url},{two.grpc_url}"
    )


def http_urls(servers: list[TritonServer]) -> str:
    return "http://" + ",".join(server.http_url for server in servers)


CONNECT: dict[str, Callable[..., Any]] = {
    "grpc": lambda servers, **options: Client(grpc_urls(servers), **options),
    "http": lambda servers, **options: Client(http_urls(servers), **options),
    "async grpc": lambda servers, **options: Blocking(grpc_urls(servers), **options),
    "async http": lambda servers, **options: Blocking(http_urls(servers), **options),
}


@pytest.fixture(params=CONNECT)
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return CONNECT[request.param]


def server_of(client: Any, prompt: str) -> str:
    """The name of the server that answers."""
    return str(client.generate(f"{prompt} !server").text.split()[-1])


def test_prompts_spread_and_stay(connect: Callable[..., Any], servers: list[TritonServer]) -> None:
    with connect(servers, retry=ONCE) as client:
        first = {number: server_of(client, f"{number} {LONG}") for number in range(12)}
        again = {number: server_of(client, f"{number} {LONG} and more") for number in range(12)}
    assert set(first.values()) == {"one", "two"}
    assert again == first


def test_round_robin(connect: Callable[..., Any], servers: list[TritonServer]) -> None:
    with connect(servers, balance="round_robin") as client:
        assert [server_of(client, LONG) for _ in range(4)] in (["one", "two"] * 2, ["two", "one"] * 2)


def test_what_concerns_all_servers(connect: Callable[..., Any], servers: list[TritonServer]) -> None:
    metrics = ",".join(server.metrics_url for server in servers)
    with connect(servers, metrics_url=metrics) as client:
        assert client.is_ready()
        assert client.is_serving()
        assert client.server_info().name == "triton"
        assert client.model_info().name == "llm"
        assert client.unfinished_requests() == []
        found = client.metrics()
        ports = {f"127.0.0.1:{server.metrics_port}" for server in servers}
        assert {sample.labels["server"] for sample in found.select("nv_inference_count")} == ports


def test_a_busy_server_sends_requests_elsewhere(connect: Callable[..., Any], servers: list[TritonServer]) -> None:
    """Both refuse a request once, each by itself, so a client that asks twice has been at both."""
    with connect(servers, retry=ONCE) as client:
        key = uuid.uuid4().hex
        with pytest.raises(ServerOverloaded):
            client.generate(f"!refuse 1 {key}")
        assert client.generate(f"!refuse 1 {key} hello").text == "hello "


def test_streams_and_cancellation(connect: Callable[..., Any], servers: list[TritonServer]) -> None:
    with connect(servers) as client:
        with client.stream("!gap 5 !forever") as stream:
            assert next(stream).text == "tick "
        assert [chunk.text for chunk in client.stream("a b")] == ["a ", "b ", ""]


@pytest.mark.parametrize("kind", ["grpc", "async http"])
def test_a_killed_server_costs_only_what_had_begun(kind: str, tmp_path: Path) -> None:
    """Its waiting requests are answered by the other one, and it is used again when it is back."""
    with ExitStack() as stack:
        one, two = (stack.enter_context(echo(tmp_path, name)) for name in ("one", "two"))
        for server in (one, two):
            server.wait_ready(60, ["llm"])
        client = stack.enter_context(CONNECT[kind]([one, two], retry=ONCE))
        mine = {server_of(client, f"{number} {LONG}"): f"{number} {LONG}" for number in range(12)}
        answers: list[str] = []

        def ask() -> None:
            # No response comes before its end, so it has not begun for the client.
            answers.append(client.generate(f"{mine['one']} !gap 1500 x !server").text.split()[-1])

        waiting = threading.Thread(target=ask)
        waiting.start()
        with client.stream(f"{mine['one']} !gap 20 !forever") as stream:
            for chunk in stream:
                if chunk.text == "tick ":
                    break
            one.kill()
            with pytest.raises(TransportError):
                for _ in stream:
                    pass
        waiting.join()
        assert answers == ["two"]
        assert Counter(server_of(client, mine["one"]) for _ in range(8)) == {"two": 8}
        ports = {"http_port": one.http_port, "grpc_port": one.grpc_port, "metrics_port": one.metrics_port}
        again = stack.enter_context(echo(tmp_path, "one", **ports))
        again.wait_ready(60, ["llm"])
        others = iter(range(10_000))
        assert eventually(lambda: server_of(client, f"other {next(others)} {LONG}") == "one")
        for server in (again, two):
            server.kill()


@pytest.mark.parametrize("kind", [Client, Blocking])
def test_a_name_with_two_addresses(
    kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, servers: list[TritonServer]
) -> None:
    """A resolver of ours stands for a name server: the tests' machine has none that they may change."""
    real = socket.getaddrinfo

    def resolve(host: str, port: Any, *args: Any, **options: Any) -> Any:
        if host != "fleet.test":
            return real(host, port, *args, **options)
        return [entry for ip in ("127.0.0.1", "127.0.0.2") for entry in real(ip, port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with kind(f"fleet.test:{servers[0].grpc_port}", balance="round_robin") as client:
        assert {server_of(client, LONG) for _ in range(4)} == {"one", "two"}


def test_a_server_is_told_its_name_and_not_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may have the servers of several names at one address."""
    hosts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hosts.append(self.headers["host"])
            self.send_response(200)
            self.end_headers()

    proxy = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **named: real("127.0.0.1", *rest, **named))
    try:
        with Client(f"http://fleet.test:{proxy.server_port}") as client:
            assert client.is_ready()
        assert hosts == [f"fleet.test:{proxy.server_port}"]
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


@pytest.mark.parametrize("kind", [Client, Blocking])
def test_a_server_that_is_away_is_left_out_of_what_concerns_all(kind: Any, servers: list[TritonServer]) -> None:
    # Port 1 is reserved, and no process listens on it.
    with kind(f"{servers[0].grpc_url},127.0.0.1:1") as client:
        assert client.unfinished_requests() == []
        fleet = getattr(client, "client", client)._fleet.fleet
        assert [server.address for server in fleet.ejected] == ["127.0.0.1:1"]
    with kind("127.0.0.1:1,127.0.0.2:1") as client:
        for _ in range(2):
            with pytest.raises(TransportError):
                client.unfinished_requests()


def test_a_name_that_does_not_exist() -> None:
    with Client("no-such-host.invalid:8001", retry=ONCE) as client, pytest.raises(TransportError, match="no-such-host"):
        client.generate("a")


@pytest.mark.parametrize("kind", [Client, Blocking])
def test_a_name_that_cannot_be_looked_up_is_tried_again(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    def fail(host: str, *rest: Any, **named: Any) -> Any:
        looked_up.append(host)
        raise socket.gaierror("temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with kind("fleet.test:8001", retry=RetryPolicy(attempts=3, initial=0.01, longest=0.01)) as client:
        stream = client.stream("a")
        with stream, pytest.raises(TransportError, match=r"fleet\.test"):
            next(stream)
    assert looked_up == ["fleet.test"] * 3


def test_the_gateway_has_several_servers(servers: list[TritonServer]) -> None:
    first, second = grpc_urls(servers).split(",")
    metrics = [f"--metrics-url={server.metrics_url}" for server in servers]
    with GatewayProcess(first, f"--server={second}", "--balance=round_robin", *metrics) as gateway:
        gateway.wait_for(["/health"], 30)
        with gateway.openai() as client:
            answers = [client.completions.create(model="llm", prompt="!server") for _ in range(4)]
        assert {answer.choices[0].text for answer in answers} == {"one", "two"}
        page = httpx.get(f"http://{gateway.http_url}/metrics").text
    found = parse_metrics(page)
    for server in servers:
        label = f"127.0.0.1:{server.metrics_port}"
        assert found.value("nv_inference_request_success", model="llm", server=label) > 0
    assert page.count("# TYPE nv_inference_request_success counter") == 1


def test_a_server_that_has_the_prompt_gets_it_unless_it_has_too_much_to_do() -> None:
    """A server may have 1.25 times the mean, rounded up, the new request included: 3 of 4 on two servers."""
    one, two = servers = [Server("one"), Server("two")]
    balance, request = PrefixAffinity(), make_request("llm", LONG, None, {}, stream=False)
    holder = balance.choose(request, servers)
    other = two if holder is one else one
    holder.num_running, other.num_running = 2, 1
    assert balance.choose(request, servers) is holder
    holder.num_running, other.num_running = 3, 0
    assert balance.choose(request, servers) is other
