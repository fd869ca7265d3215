"""A stream that nobody reads any more ends on the server. It leaves nothing behind and affects no other request."""

import threading
from typing import Any

import pytest

from inflight_client import Client, RequestCancelled
from tests.eventually import eventually


def our_threads() -> set[threading.Thread]:
    """All threads except grpc.aio's polling thread, which serves all channels until the process ends."""
    return {thread for thread in threading.enumerate() if "_poll_wrapper" not in thread.name}


def cancelled(client: Client) -> int:
    """The number of cancelled requests that the server has seen so far."""
    return int(client.generate("!cancelled").text)


def test_leaving_a_stream_cancels_it_and_no_other(client: Client) -> None:
    before = cancelled(client)
    with client.stream("!gap 10 !forever") as kept:
        next(kept)
        with client.stream("!gap 10 !forever") as left:
            next(left)
        assert eventually(lambda: cancelled(client) == before + 1)
        assert [next(kept).text for _ in range(20)] == ["tick "] * 20
        assert cancelled(client) == before + 1
    assert eventually(lambda: cancelled(client) == before + 2)


def test_abandoned_stream_is_cancelled(client: Client) -> None:
    before = cancelled(client)
    for _ in client.stream("!gap 10 !forever"):
        break
    assert eventually(lambda: cancelled(client) == before + 1)


def test_cancel_from_another_thread_ends_the_iteration(client: Client) -> None:
    before = cancelled(client)
    with client.stream("!gap 10 !forever") as stream:
        next(stream)
        threading.Timer(0.1, stream.cancel).start()
        with pytest.raises(RequestCancelled):
            list(stream)
    assert eventually(lambda: cancelled(client) == before + 1)


def test_finished_stream_is_not_counted_as_cancelled(client: Client) -> None:
    before = cancelled(client)
    with client.stream("one two") as stream:
        assert [chunk.text for chunk in stream] == ["one ", "two ", ""]
    assert cancelled(client) == before


def test_no_thread_is_left_behind(connect: Any) -> None:
    before = our_threads()
    with connect() as client:
        streams = [client.stream("!gap 10 !forever") for _ in range(16)]
        for stream in streams:
            next(stream)
            stream.cancel()
        client.generate("one")
    assert eventually(lambda: our_threads() <= before)
