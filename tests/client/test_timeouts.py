"""Each of the timeouts works."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from inflight_client import Client, DeadlineExceeded, InflightError, RetryPolicy, Timeouts, TransportError
from tests.client.blocking import Blocking
from tests.client.test_cancellation import cancelled, cancelled_before
from tests.eventually import eventually

ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("kind", [Client, Blocking])
@pytest.mark.parametrize(
    ("scheme", "error"),
    # An HTTP/2 connection exists after both sides have sent their settings. For HTTP/1.1 the TCP connection suffices.
    [("", TransportError), ("http://", DeadlineExceeded)],
)
def test_server_that_says_nothing(silent: str, kind: Any, scheme: str, error: type[InflightError]) -> None:
    started = time.monotonic()
    timeouts = Timeouts(connect=0.5, first_token=1.0)
    with kind(scheme + silent, timeouts=timeouts, retry=ONCE) as client:
        with client.stream("one") as stream, pytest.raises(error):
            next(stream)
        assert not client.is_ready()
    assert time.monotonic() - started < 5


def test_first_token(connect: Any) -> None:
    with connect(timeouts=Timeouts(first_token=1.0), retry=ONCE) as client:
        with client.stream("one !gap 1300 two") as stream:
            assert stream.completion().text == "one two "
        with client.stream("!gap 1300 one") as stream, pytest.raises(DeadlineExceeded, match=r"^nothing came within"):
            next(stream)
        # The timeout of the first token does not apply to a whole answer.
        assert client.generate("!gap 1300 one").text == "one "


def test_a_stream_that_stalls_ends_and_is_cancelled(connect: Any) -> None:
    with connect(timeouts=Timeouts(between_tokens=0.3), retry=ONCE) as client:
        before = cancelled_before(client)
        with client.stream("one !gap 1000 !forever") as stream:
            assert next(stream).text == "one "
            with pytest.raises(DeadlineExceeded, match=r"^the stream stalled: nothing came for 0\.3 s$"):
                list(stream)  # A slow reader may miss some pauses, and finds the next token there.
        # Neither the first token nor a whole answer is bound by it.
        with client.stream("!gap 600 one") as stream:
            assert next(stream).text == "one "
        assert client.generate("!gap 600 one").text == "one "
        assert eventually(lambda: cancelled(client) == before + 1)


def test_a_reader_that_pauses_does_not_make_a_stream_stall(connect: Any) -> None:
    with (
        connect(timeouts=Timeouts(between_tokens=0.3), retry=ONCE) as client,
        client.stream("one !gap 100 two three") as stream,
    ):
        assert next(stream).text == "one "
        assert not threading.Event().wait(0.7)
        assert stream.completion().text == "one two three "


def test_total(client: Client) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        # Over HTTP, the server does not notice that nobody waits for a whole answer any more.
        client.generate("!gap 10 !forever", max_tokens=500, timeout=0.3)
    with client.stream("!gap 10 !forever", max_tokens=500, timeout=0.3) as stream, pytest.raises(DeadlineExceeded):
        stream.completion()
    assert time.monotonic() - started < 5


def test_the_server_is_told(client: Client) -> None:
    request = json.loads(client.generate("!request", timeout=7.0).text)
    assert 6000 < json.loads(request["sampling_parameters"])["deadline_ms"] <= 7000
    request = json.loads(client.generate("!request", timeout=7.0, deadline_ms=123).text)
    assert json.loads(request["sampling_parameters"])["deadline_ms"] == 123


@pytest.mark.parametrize("name", ["connect", "first_token", "between_tokens", "total", "unreachable"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e10, float("inf"), float("nan")])
def test_bounds_that_make_no_sense(name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is {seconds}; it must be over 0 and at most 1000000 seconds"):
        Timeouts(**{name: seconds})


@pytest.mark.parametrize("kind", [Client, Blocking])
@pytest.mark.parametrize("scheme", ["", "http://"])
def test_the_longest_timeouts_do_not_overflow(kind: Any, scheme: str) -> None:
    longest = 1e6
    timeouts = Timeouts(
        connect=longest, first_token=longest, between_tokens=longest, total=longest, unreachable=longest
    )
    with kind(f"{scheme}127.0.0.1:1", timeouts=timeouts, retry=ONCE) as client, pytest.raises(TransportError):
        client.generate("one")


@pytest.mark.parametrize("kind", [Client, Blocking])
def test_a_total_that_makes_no_sense_is_refused_before_the_request_is_sent(kind: Any) -> None:
    with kind("127.0.0.1:1", retry=ONCE) as client, pytest.raises(ValueError, match=r"^total is inf"):
        client.generate("one", timeout=float("inf"))
