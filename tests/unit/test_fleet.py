import math
import socket
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_client import (
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    RetryPolicy,
    ServerFault,
    ServerOverloaded,
    TextStream,
    Timeouts,
    TransportError,
    Usage,
)
from inflight_client.errors import error_of_model
from inflight_client.fleet.addresses import AddressBook, is_dns_name, split_url
from inflight_client.fleet.attempts import Attempts
from inflight_client.fleet.balance import BALANCES, LeastLoaded, PrefixAffinity, RoundRobin
from inflight_client.fleet.connection import FleetConnection
from inflight_client.fleet.fleet import Fleet
from inflight_client.fleet.prefixes import PrefixMemory, prefix_hashes
from inflight_client.fleet.server import Server
from inflight_client.options import Options, TimeLimits
from inflight_client.request import Prompt, Request, make_request
from inflight_client.response import Reply

LIMITS = TimeLimits(10, 10, 10)


def of(prompt: Prompt, **sampling: object) -> Request:
    return make_request("llm", prompt, None, sampling, stream=True)  # type: ignore[arg-type]


def fleet(count: int = 3, balance: str = "prefix") -> Fleet:
    made = Fleet(BALANCES[balance]())
    made.set_addresses([f"h{number}:1" for number in range(count)])
    return made


def begin(fleet: Fleet, prompt: Prompt, tried: Sequence[Server] = (), **sampling: object) -> Server:
    server = fleet.begin(of(prompt, **sampling), tried)
    assert server is not None
    return server


# -- URLs ----------------------------------------------------------------------------------------------------


def test_the_first_scheme_goes_for_all() -> None:
    assert split_url("http://a:1,b:2") == ["http://a:1", "http://b:2"]
    assert split_url("a:1, b:2") == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("url", "message"),
    [("a:1,,b:2", "empty part"), ("http://a:1,grpc://b:2", "several schemes"), ("a:1,a:1", "a server twice")],
)
def test_wrong_lists_are_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_url(url)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("llm.default.svc:8001", True),
        ("127.0.0.1:8001", False),
        ("[::1]:8001", False),
        ("localhost:8001", False),
        ("llm", False),
    ],
)
def test_which_hosts_are_names(address: str, expected: bool) -> None:
    assert is_dns_name(Options(address, None, {}, 1, 1)) is expected


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The addresses of names, in place of a name server. A name that is not here cannot be resolved."""
    known: dict[str, list[str]] = {}

    def look_up(host: str, port: str, **options: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise socket.gaierror("temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port))) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


def book(*hosts: str) -> AddressBook:
    return AddressBook([Options(f"{host}:1", None, {}, 1, 1) for host in hosts])


def test_a_name_that_cannot_be_resolved_does_not_concern_the_others(names: dict[str, list[str]]) -> None:
    made = book("llm-1", "llm-2", "127.0.0.9")
    assert set(made.look_up()) == {"127.0.0.9:1"}
    names |= {"llm-1": ["127.0.0.1", "127.0.0.3"], "llm-2": ["127.0.0.2"]}
    assert set(made.look_up()) == {"127.0.0.1:1", "127.0.0.3:1", "127.0.0.2:1", "127.0.0.9:1"}


def test_a_name_that_cannot_be_resolved_any_more_keeps_its_addresses(names: dict[str, list[str]]) -> None:
    made = book("llm-1", "llm-2")
    names |= {"llm-1": ["127.0.0.1"], "llm-2": ["127.0.0.2"]}
    made.look_up()
    del names["llm-2"]
    names["llm-1"] = ["127.0.0.7"]
    assert set(made.look_up()) == {"127.0.0.7:1", "127.0.0.2:1"}


@pytest.mark.usefixtures("names")
def test_without_any_address_the_error_names_a_server() -> None:
    with pytest.raises(TransportError, match="the address of llm-2:1 is unknown"):
        book("llm-1", "llm-2").look_up()


# -- prefixes ----------------------------------------------------------------------------------------------------


@given(st.text(min_size=300, max_size=2000), st.text(max_size=500))
def test_a_longer_prompt_begins_with_the_same_hashes(prompt: str, more: str) -> None:
    hashes = prefix_hashes(of(prompt))
    assert prefix_hashes(of(prompt + more))[: len(hashes)] == hashes


def test_what_separates_prompts_in_the_cache_separates_their_hashes() -> None:
    prompts = [of("x" * 300), of("x" * 300, tenant="a"), of("x" * 300, sampling_parameters={"cache_salt": "a"})]
    assert len({prefix_hashes(prompt)[0] for prompt in prompts}) == 3


def test_a_long_prompt_has_a_bounded_number_of_hashes() -> None:
    assert len(prefix_hashes(of("word " * 100_000))) == 256


def test_the_longest_known_part_decides() -> None:
    memory: PrefixMemory[str] = PrefixMemory()
    memory.add([b"head", b"a"], "one")
    memory.add([b"head", b"b"], "two")
    assert memory.holders([b"head", b"b", b"c"], ["one", "two"]) == {"two"}
    assert memory.holders([b"head", b"c"], ["one", "two"]) == {"one", "two"}
    assert memory.holders([b"head", b"b"], ["one"]) == {"one"}
    memory.forget("one")
    assert memory.holders([b"head", b"a"], ["one", "two"]) == {"two"}


# -- balance ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=200), st.integers(1, 5))
def test_no_server_has_much_more_than_the_mean(steps: list[tuple[int, bool]], count: int) -> None:
    """Whatever the prompts are, and whatever ends when."""
    made, running = fleet(count), list[Server]()
    for prompt, ends in steps:
        running.append(server := begin(made, f"{prompt} " * 200))
        assert server.num_running <= -(-1.25 * len(running) // count)
        if ends:
            made.end(running.pop(0))


def test_turns_of_a_chat_go_to_one_server() -> None:
    """Beside other chats with the same beginning."""
    made, head = fleet(), "You are a helpful assistant. " * 40
    chats = {number: head + f"I am user {number}. " * 30 for number in range(12)}
    first = {}
    for number, chat in chats.items():
        first[number] = begin(made, chat)
    assert set(Counter(first.values()).values()) == {4}
    for server in first.values():
        made.end(server)
    for number, chat in chats.items():
        server = begin(made, chat + "And then? " * 40)
        assert server is first[number]
        made.end(server)


def test_prompts_that_share_nothing_are_spread_evenly() -> None:
    """Nearly as well as by the least loaded server: four of a thousand above the mean."""
    made = fleet()
    most = [0]
    for number in range(1000):
        begin(made, f"{number} " * 200)
        most.append(max(server.num_running for server in made.servers))
    assert all(running <= -(-number // 3) + 4 for number, running in enumerate(most))


def test_clients_that_know_nothing_of_each_other_agree() -> None:
    one, other = fleet(), fleet()
    for number in range(20):
        servers = [begin(made, f"{number} " * 200) for made in (one, other)]
        assert servers[0].address == servers[1].address
        one.end(servers[0])
        other.end(servers[1])


def test_few_prompts_move_when_a_server_is_added() -> None:
    def places(count: int) -> list[str]:
        made, chosen = fleet(count), []
        for number in range(300):
            chosen.append(server := begin(made, f"{number} " * 200))
            made.end(server)
        return [server.address for server in chosen]

    moved = [after for before, after in zip(places(3), places(4), strict=True) if before != after]
    assert set(moved) == {"h3:1"}
    assert 40 < len(moved) < 110


def test_other_balances() -> None:
    servers = [Server("a", num_running=2), Server("b", num_running=1), Server("c", num_running=1)]
    turns = RoundRobin()
    assert [turns.choose(of("x"), servers).address for _ in range(4)] == ["a", "b", "c", "a"]
    least = LeastLoaded()
    assert {least.choose(of("x"), servers).address for _ in range(4)} == {"b", "c"}


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_server_that_is_away_gets_nothing_until_it_is_back() -> None:
    made = fleet()
    lost = begin(made, "x" * 300)
    made.end(lost, TransportError("refused"))
    for _ in range(5):
        other = begin(made, "x" * 300)
        assert other is not lost
        made.end(other)
    assert made.ejected == [lost]
    made.take_back([lost])
    assert {begin(made, f"{number} " * 200) for number in range(20)} == set(made.servers)


@pytest.mark.parametrize("message", ["the server is draining; send", "the engine has stopped: rank 1 has ended"])
def test_a_model_that_takes_nothing_any_more_is_left_out(message: str) -> None:
    made = fleet(2)
    attempts = Attempts(made, of("x"), LIMITS)
    server, _, _ = attempts.next()
    error = error_of_model(f"UNAVAILABLE: {message}")
    assert isinstance(error, ModelNotReady)
    attempts.end(error)
    attempts.check(error, begun=False)
    assert made.ejected == [server]
    assert attempts.next()[0] is not server


def test_a_request_that_may_have_ended_the_engine_goes_nowhere_else() -> None:
    attempts = Attempts(fleet(2), of("x"), LIMITS)
    attempts.next()
    error = error_of_model("INTERNAL: the engine has stopped: out of memory")
    assert isinstance(error, ServerFault)
    with pytest.raises(ServerFault):
        attempts.check(error, begun=False)


def test_if_all_are_away_they_are_tried_nevertheless() -> None:
    made = fleet(2)
    for server in made.servers:
        assert made.begin(of("x"), [other for other in made.servers if other is not server]) is server
        made.end(server, ModelNotReady("gone"))
    attempts = Attempts(made, of("x"), LIMITS)
    tried = []
    for _ in range(2):
        server, _, _ = attempts.next()
        tried.append(server)
        attempts.end(TransportError(server.address))
        attempts.check(TransportError(server.address), begun=False)
    assert set(tried) == set(made.servers)
    with pytest.raises(TransportError, match=tried[-1].address):
        attempts.next()
    assert [server.num_running for server in made.servers] == [0, 0]


def test_a_busy_server_is_not_ejected_but_another_one_is_asked() -> None:
    made = fleet(2)
    attempts = Attempts(made, of("x"), LIMITS)
    tried = set()
    for _ in range(2):
        server, _, _ = attempts.next()
        tried.add(server)
        attempts.end(error := ServerOverloaded("full"))
        attempts.check(error, begun=False)
    assert tried == set(made.servers)
    assert not made.ejected
    with pytest.raises(ServerOverloaded):
        attempts.next()


def test_the_next_server_gets_the_time_that_is_left() -> None:
    attempts = Attempts(fleet(2), of("x", deadline_ms=3000), LIMITS)
    _, request, limits = attempts.next()
    assert (request.parameters["deadline_ms"], limits) == (3000, LIMITS)
    time.sleep(0.05)
    attempts.end(ServerOverloaded("full"))
    _, request, limits = attempts.next()
    assert request.parameters["deadline_ms"] <= 2950
    assert limits.total <= 9.95


@pytest.mark.parametrize(("error", "begun"), [(InvalidRequest("no"), False), (TransportError("cut"), True)])
def test_what_cannot_go_elsewhere(error: Exception, begun: bool) -> None:
    attempts = Attempts(fleet(), of("x"), LIMITS)
    attempts.next()
    attempts.end(error)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        attempts.check(error, begun=begun)  # type: ignore[arg-type]


def test_addresses_change() -> None:
    made = fleet(2)
    stays, goes = sorted(made.servers, key=lambda server: server.address)
    new, gone = made.set_addresses([stays.address, "h9:1"])
    assert [server.address for server in new] == ["h9:1"]
    assert gone == [goes]
    assert goes.is_gone
    assert {begin(made, f"{number} " * 200).address for number in range(20)} == {"h0:1", "h9:1"}


def test_the_memory_is_bounded() -> None:
    affinity, servers = PrefixAffinity(), [Server("a"), Server("b")]
    for number in range(200):
        affinity.choose(of(f"{number} " * 20_000), servers)
    assert len(affinity._memory._servers) == 32_768


# -- Streams that are left -----------------------------------------------------------------------------------


class Endless:
    """A connection to a server whose answers never end."""

    def __init__(self, options: Options) -> None:
        pass

    def start(self, request: Request, limits: TimeLimits) -> "Endless":
        return self

    def replies(self) -> Generator[Reply, None, None]:
        while True:
            yield Reply(["a"], [], [], [], Usage(1, 1))

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_stream_that_was_left_runs_on_no_server_though_it_is_kept() -> None:
    options = Options("h:1", None, {}, 1.0, math.inf)
    named = [replace(options, address=f"127.0.0.{number}:1") for number in (1, 2)]
    connection = FleetConnection(named, Endless, LeastLoaded(), "llm")
    kept = []
    for _ in range(3):
        with TextStream(connection, of("x"), Timeouts(), RetryPolicy()) as stream:
            assert next(stream).text == "a"
            assert sum(server.num_running for server in connection.fleet.servers) == 1
        kept.append(stream)
        assert [server.num_running for server in connection.fleet.servers] == [0, 0]
        with pytest.raises(RequestCancelled):
            next(stream)
    connection.close()
