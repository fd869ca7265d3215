"""Which requests the client sends again, and which it does not."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_client import (
    DeadlineExceeded,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    RetryPolicy,
    ServerFault,
    ServerOverloaded,
    Timeouts,
    TransportError,
)
from inflight_client.request import make_request
from inflight_client.retry import Attempts
from scripts.launch.server_process import fill_ports
from scripts.launch.triton_server import TritonServer
from tests.client.conftest import CONNECT, ECHO

QUICK = RetryPolicy(attempts=4, initial=0.01, longest=0.05)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key for `!refuse`, different for each test and client."""
    return str(request.node.name).replace(" ", "-")


def test_refused_request_is_sent_again(connect: Any, key: str) -> None:
    with connect(retry=QUICK) as client:
        assert client.generate(f"!refuse 3 {key} one").text == "one "
        with client.stream(f"!refuse 6 {key} two") as stream:
            assert stream.completion().text == "two "


def test_attempts_are_bounded(connect: Any, key: str) -> None:
    with connect(retry=QUICK) as client, pytest.raises(ServerOverloaded):
        client.generate(f"!refuse 4 {key} one")


def test_nothing_is_sent_again_after_the_first_token(connect: Any, key: str) -> None:
    with connect(retry=QUICK) as client, client.stream(f"one !refuse 1 {key} two") as stream:
        assert next(stream).text == "one "
        with pytest.raises(ServerOverloaded):
            next(stream)


@pytest.mark.parametrize(("code", "error"), [("INVALID_ARG", InvalidRequest), ("INTERNAL", ServerFault)])
def test_what_would_fail_again_is_not_sent_again(connect: Any, code: str, error: type[InflightError]) -> None:
    with connect(retry=RetryPolicy(initial=60, longest=60)) as client, pytest.raises(error):
        client.generate(f"!error {code}")


def test_waits_end_with_the_request_s_time(connect: Any, key: str) -> None:
    with connect(retry=RetryPolicy(attempts=100, initial=0.1, longest=0.1)) as client:
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"0.5 s; the last error was ServerOverloaded"):
            client.generate(f"!refuse 100 {key}", timeout=0.5)
        assert time.monotonic() - started < 5  # All attempts would take longer.


def test_an_attempt_has_what_is_left_of_the_caller_s_limits(connect: Any, key: str) -> None:
    with connect(retry=RetryPolicy(attempts=4, initial=0.1, longest=0.1)) as client:
        limits = {"sampling_parameters": {"timeout": 20_000_000}, "deadline_ms": 30_000}
        request = json.loads(client.generate(f"!refuse 3 {key} !request", **limits).text)
        sent = json.loads(request["sampling_parameters"])
        assert 15_000_000 < sent["timeout"] <= 20_000_000 - 3 * 50_000
        assert 25_000 < sent["deadline_ms"] <= 30_000 - 3 * 50


@pytest.mark.parametrize("limits", [{"deadline_ms": 500}, {"sampling_parameters": {"timeout": 500_000}}])
def test_nothing_is_sent_after_the_caller_s_limits(connect: Any, key: str, limits: dict[str, Any]) -> None:
    with connect(retry=RetryPolicy(attempts=100, initial=0.1, longest=0.1)) as client:
        with pytest.raises(DeadlineExceeded, match=r"0.5 s; the last error was ServerOverloaded"):
            client.generate(f"!refuse 12 {key}-{next(iter(limits))}", **limits)
        # It was sent a few times, not a hundred.
        assert client.generate(f"!refuse 12 {key}-{next(iter(limits))} one").text == "one "


def test_a_request_that_the_server_ended_at_its_limit_is_not_sent_again(connect: Any) -> None:
    with connect(retry=RetryPolicy(initial=60, longest=60)) as client, pytest.raises(DeadlineExceeded):
        client.generate("!error DEADLINE_EXCEEDED")


@given(
    st.fixed_dictionaries({}, optional={"deadline_ms": st.integers(1, 10**6), "timeout": st.integers(0, 10**9)}),
    st.lists(st.floats(0, 100), max_size=5),
)
def test_limits_shrink_by_the_time_that_has_passed(limits: dict[str, int], passed: list[float]) -> None:
    request = make_request("llm", "one", None, {"sampling_parameters": {"seed": 3, **limits}}, stream=True)
    seconds, shrunk = request.seconds, request
    for wait in passed:
        shrunk = shrunk.after(wait)
    left = max(0.0, seconds - sum(passed))
    assert shrunk.seconds == pytest.approx(left, abs=0.001 * (1 + len(passed)))
    assert shrunk.parameters.keys() == request.parameters.keys()
    assert all(limits[name] == 0 or shrunk.parameters[name] >= 1 for name in limits)


def test_cancelling_ends_the_wait(connect: Any, key: str) -> None:
    with connect(retry=RetryPolicy(initial=60, longest=60)) as client, client.stream(f"!refuse 1 {key}") as stream:
        threading.Timer(0.3, stream.cancel).start()
        with pytest.raises(RequestCancelled):
            next(stream)


def test_server_that_dies_and_comes_back(tmp_path: Path) -> None:
    (tmp_path / "llm").symlink_to(ECHO)
    http_port, grpc_port, metrics_port = fill_ports(None, None, None)

    def start() -> TritonServer:
        server = TritonServer(tmp_path, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)
        server.start()
        return server

    server = start()
    try:
        server.wait_ready(60, ["llm"])
        retry = RetryPolicy(attempts=50, initial=0.1, longest=0.5)
        clients = [connect(server, retry=retry) for connect in CONNECT.values()]
        streams = [client.stream("!gap 10 !forever") for client in clients]
        for stream in streams:
            assert next(stream).text == "tick "
        server.kill()
        for stream in streams:
            with pytest.raises(TransportError):
                stream.completion()
        server = start()
        # The server is still starting, and refuses connections.
        assert [client.generate("one").text for client in clients] == ["one "] * len(clients)
        for client in clients:
            client.close()
    finally:
        server.kill()


errors = st.sampled_from([ServerOverloaded("busy"), ModelNotReady("loading"), TransportError("gone")])


@given(errors, st.integers(1, 50), st.floats(0.001, 10), st.floats(1, 100))
def test_waits_double_up_to_the_longest(error: InflightError, attempt: int, initial: float, factor: float) -> None:
    policy = RetryPolicy(attempts=100, initial=initial, longest=initial * factor)
    wait = policy.wait_after(error, attempt)
    full = min(policy.longest, initial * 2 ** (attempt - 1))
    assert wait is not None
    assert full / 2 <= wait <= full


def test_the_server_s_hint_counts() -> None:
    policy = RetryPolicy(initial=0.1, longest=5.0)
    assert policy.wait_after(ServerOverloaded("busy", retry_after=3.0), 1) == 3.0
    assert policy.wait_after(ServerOverloaded("busy", retry_after=60.0), 1) == 5.0
    # Its own wait, of 0.4 s or half of it, is longer.
    assert (policy.wait_after(ServerOverloaded("busy", retry_after=0.001), 3) or 0) >= 0.2


def test_a_further_attempt_has_the_time_that_is_left() -> None:
    attempts = Attempts(QUICK, Timeouts(first_token=60, total=60), make_request("llm", "Hello", None, {}, stream=True))
    (_, first), (_, second) = attempts.next(), attempts.next()
    assert (first.first, first.total) == (60, 60)
    assert second.first == second.total < 60


@pytest.mark.parametrize("options", [{"attempts": 0}, {"initial": 0.0}, {"initial": 2.0, "longest": 1.0}])
def test_policies_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        RetryPolicy(**options)
