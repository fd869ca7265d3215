"""A stream that nobody reads any more ends on the server. It leaves nothing behind and affects no other request."""

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inflight_client import (
    AsyncTextStream,
    Client,
    RequestCancelled,
    RetryPolicy,
    ServerOverloaded,
    TextStream,
    Timeouts,
)
from inflight_client.options import TimeLimits
from inflight_client.request import Request, make_request
from inflight_client.response import Reply
from scripts.launch.triton_server import TritonServer
from tests.eventually import eventually


def our_threads() -> set[threading.Thread]:
    """All threads except grpc.aio's polling thread, which serves all channels until the process ends."""
    return {thread for thread in threading.enumerate() if "_poll_wrapper" not in thread.name}


def cancelled(client: Client) -> int:
    """The number of cancelled requests that the server has seen so far."""
    return int(client.generate("!cancelled").text)


def cancelled_before(client: Client) -> int:
    """The number once all requests of earlier tests have ended: some are cancelled only after their tests."""
    assert eventually(lambda: client.generate("!others").text == "0")
    return cancelled(client)


def arrived(client: Client) -> int:
    """The number of requests that have reached the model so far."""
    return int(client.metrics().value("nv_inference_exec_count", model="llm"))


def test_leaving_a_stream_cancels_it_and_no_other(client: Client) -> None:
    before = cancelled_before(client)
    with client.stream("!gap 10 !forever") as kept:
        next(kept)
        with client.stream("!gap 10 !forever") as left:
            next(left)
        assert eventually(lambda: cancelled(client) == before + 1)
        assert [next(kept).text for _ in range(20)] == ["tick "] * 20
        assert cancelled(client) == before + 1
    assert eventually(lambda: cancelled(client) == before + 2)


def test_abandoned_stream_is_cancelled(client: Client) -> None:
    before = cancelled_before(client)
    for _ in client.stream("!gap 10 !forever"):
        break
    assert eventually(lambda: cancelled(client) == before + 1)


def test_a_dropped_stream_that_nobody_has_read_is_cancelled(server: TritonServer) -> None:
    # Over HTTP, nothing would be sent.
    with Client(server.grpc_url, metrics_url=server.metrics_url) as client:
        before = cancelled_before(client)
        num_arrived = arrived(client)
        stream = client.stream("!gap 10 !forever")
        assert eventually(lambda: arrived(client) > num_arrived)
        del stream
        assert eventually(lambda: cancelled(client) == before + 1)


def test_cancel_from_another_thread_ends_the_iteration(client: Client) -> None:
    before = cancelled_before(client)
    with client.stream("!gap 10 !forever") as stream:
        next(stream)
        threading.Timer(0.1, stream.cancel).start()
        with pytest.raises(RequestCancelled):
            list(stream)
    assert eventually(lambda: cancelled(client) == before + 1)


def test_finished_stream_is_not_counted_as_cancelled(client: Client) -> None:
    before = cancelled_before(client)
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


def test_closing_the_client_ends_what_runs_and_what_waits_to_be_sent_again(connect: Any, request: Any) -> None:
    client = connect(retry=RetryPolicy(initial=60, longest=60))
    with ThreadPoolExecutor() as pool:
        streams = [client.stream("!gap 10 !forever"), client.stream("!gap 10 !forever")]
        for stream in streams:
            next(stream)
        refused = client.stream(f"!refuse 1 close-{uuid.uuid4()}")
        running = [pool.submit(stream.completion) for stream in (*streams, refused)]
        assert not running[0].done()
        closed_of(client)()
        for future in running[:2]:
            with pytest.raises(RequestCancelled):
                future.result(10)
        # A request whose next attempt has not come yet can only be told.
        pool.submit(refused.cancel)
        with pytest.raises(RequestCancelled):
            running[2].result(10)
    with pytest.raises(RequestCancelled, match="the client is closed"):
        client.generate("one")
    assert not client.is_ready()
    with pytest.raises(RequestCancelled, match="the client is closed"):
        client.server_info()
    client.close()


def closed_of(client: Any) -> Any:
    """What closes a client but leaves the loop of a `Blocking` running."""
    return client.close if isinstance(client, Client) else lambda: client.run(client.client.close())


def test_cancelling_as_the_wait_for_the_next_attempt_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cancel` comes after the wait has timed out, and before the task goes on."""

    class Refusing:
        """A connection that refuses every request."""

        sent = 0

        def start(self, request: Request, limits: TimeLimits) -> "Refusing":
            self.sent += 1
            return self

        async def replies(self) -> AsyncGenerator[Reply, None]:
            raise ServerOverloaded("busy")
            yield

        async def cancel(self) -> None:
            pass

    async def scenario() -> int:
        connection: Any = Refusing()
        asked = make_request("llm", "one", None, {}, stream=True)
        stream = AsyncTextStream(connection, asked, Timeouts(), RetryPolicy(initial=0.01, longest=0.01))
        wait_for = asyncio.wait_for

        async def and_cancel(waiting: Any, seconds: float) -> None:
            try:
                await wait_for(waiting, seconds)
            finally:
                await stream.cancel()

        monkeypatch.setattr(asyncio, "wait_for", and_cancel)
        with pytest.raises(RequestCancelled):
            await anext(stream)
        return connection.sent

    assert asyncio.run(scenario()) == 1


def test_a_refusal_after_the_cancellation_changes_nothing() -> None:
    streams: list[TextStream] = []

    class Refusing:
        """A connection whose refusal comes when the request has just been cancelled."""

        def start(self, request: Request, limits: TimeLimits) -> "Refusing":
            return self

        def replies(self) -> Iterator[Reply]:
            streams[0].cancel()
            raise ServerOverloaded("busy")
            yield

        def cancel(self) -> None:
            pass

    connection: Any = Refusing()
    asked = make_request("llm", "one", None, {}, stream=True)
    streams.append(TextStream(connection, asked, Timeouts(), RetryPolicy()))
    with pytest.raises(RequestCancelled):
        next(streams[0])
