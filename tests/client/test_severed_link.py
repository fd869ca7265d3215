"""A server that disappears silently is noticed in seconds, and one that computes for long is not given up."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import grpc
import psutil
import pytest

from inflight_client import (
    AsyncClient,
    Client,
    ModelNotReady,
    Prefill,
    RequestCancelled,
    RetryPolicy,
    Timeouts,
    TransportError,
)
from inflight_client.options import connection_options
from inflight_client.transport.http_async import AsyncHttpConnection
from scripts.launch.triton_server import TritonServer
from tests.client.blocking import Blocking
from tests.client.link import Link, link
from tests.client.test_cancellation import closed_of, our_threads
from tests.eventually import eventually

ONCE = RetryPolicy(attempts=1)
# The others are so long that a test fails where nobody notices anything.
TIMES = Timeouts(unreachable=0.8, first_token=30, between_tokens=30, total=30)
# For servers that live: also on a busy machine they answer in time.
LONGER = replace(TIMES, unreachable=2.0)
NO_ANSWER = "does not answer"
LONG = "word " * 100


class Way:
    """How a client reaches the server."""

    def __init__(self, scheme: str, port: int, kind: Callable[..., Any]) -> None:
        self.scheme, self.port, self.kind = scheme, port, kind

    def client(self, *addresses: str, **options: Any) -> Any:
        url = self.scheme + ",".join(addresses)
        return self.kind(url, **{"retry": ONCE, "timeouts": TIMES, **options})


@pytest.fixture(params=["grpc", "http", "async grpc", "async http"])
def way(request: pytest.FixtureRequest, server: TritonServer) -> Way:
    kind = Blocking if "async" in request.param else Client
    if "http" in request.param:
        return Way("http://", server.http_port, kind)
    return Way("grpc://", server.grpc_port, kind)


@pytest.fixture
def severable(way: Way) -> Iterator[Link]:
    with link(way.port) as made:
        yield made


def test_every_running_request_ends(way: Way, severable: Link) -> None:
    with way.client(severable.address) as client, ThreadPoolExecutor() as pool:
        streams = [client.stream("!gap 10 !forever") for _ in range(3)]
        for stream in streams:
            assert next(stream).text == "tick "
        waiting = [pool.submit(client.generate, "!gap 20000 one"), *(pool.submit(each.completion) for each in streams)]
        severable.sever()
        for future in waiting:
            with pytest.raises(TransportError, match=NO_ANSWER):
                future.result(20)


def test_a_request_on_a_dead_connection_ends_and_the_next_one_has_a_new_connection(way: Way, severable: Link) -> None:
    with way.client(severable.address) as client:
        assert client.generate("one").text == "one "
        severable.sever()
        for _ in range(2):
            with pytest.raises(TransportError, match=NO_ANSWER):
                client.generate("one")
        severable.mend()
        assert client.generate("one").text == "one "


def test_it_is_sent_again_as_after_any_lost_connection(way: Way, severable: Link) -> None:
    severable.sever()
    retry = RetryPolicy(attempts=3, initial=0.1, longest=0.1)
    with way.client(severable.address, retry=retry) as client, ThreadPoolExecutor() as pool:
        answer = pool.submit(client.generate, "one")
        threading.Timer(1.0, severable.mend).start()
        assert answer.result(20).text == "one "


def test_another_server_answers_what_has_not_begun(way: Way, severable: Link) -> None:
    with (
        link(way.port) as other,
        ThreadPoolExecutor() as pool,
        way.client(severable.address, other.address, balance="round_robin", timeouts=LONGER) as client,
    ):
        # Two wait for each server.
        waiting = [pool.submit(client.generate, f"!gap 700 {number} two") for number in range(4)]
        assert not eventually(lambda: any(future.done() for future in waiting), 0.3)
        severable.sever()
        assert [future.result(20).text for future in waiting] == [f"{number} two " for number in range(4)]
        # It gets no requests until it answers again.
        assert all(client.generate("one").text == "one " for _ in range(4))


def test_a_prompt_whose_server_goes_away_is_computed_by_the_other(way: Way, severable: Link) -> None:
    prefill = Prefill(url=way.scheme + severable.address, min_tokens=8, timeout=20)
    with link(way.port) as rest, way.client(rest.address, prefill=prefill) as client:
        assert client.generate(LONG).text == LONG
        severable.sever()
        assert client.generate(LONG).text == LONG
        prefills = (client.client if isinstance(client, Blocking) else client).prefills
        assert prefills == {"offered": 0, "not_offered": 1, "failed": 1, "skipped": 0}


def test_a_server_that_computes_for_long_is_not_given_up(way: Way, severable: Link) -> None:
    with way.client(severable.address, timeouts=LONGER) as client:
        assert client.generate("!gap 3000 one").text == "one "
        with client.stream("one !gap 3000 two") as stream:
            assert [chunk.text for chunk in stream] == ["one ", "two ", ""]


def test_a_setting_turns_it_off(way: Way, severable: Link) -> None:
    timeouts = Timeouts(unreachable=None, total=30)
    with way.client(severable.address, timeouts=timeouts) as client, ThreadPoolExecutor() as pool:
        stream = client.stream("!gap 10 !forever")
        next(stream)
        severable.sever()
        rest = pool.submit(stream.completion)
        assert not eventually(rest.done, 2)
        stream.cancel()
        with pytest.raises(RequestCancelled):
            rest.result(10)


STANDING_STILL = """
import sys
from inflight_client import Client, RetryPolicy, Timeouts
from tests.client.blocking import Blocking

kind, url = sys.argv[1:]
timeouts = Timeouts(unreachable=1.2, total=30)
with {"Client": Client, "Blocking": Blocking}[kind](url, retry=RetryPolicy(attempts=1), timeouts=timeouts) as client:
    print(client.generate("one").text, flush=True)
    print(client.generate("!gap 6000 two").text)
"""


def test_a_client_that_was_stopped_does_not_give_up_its_server(way: Way, severable: Link) -> None:
    """It is stopped for longer than a probe may take, again and again, and goes on for less than that."""
    arguments = [sys.executable, "-c", STANDING_STILL, way.kind.__name__, way.scheme + severable.address]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one \n"
        stopped = psutil.Process(process.pid)
        for _ in range(5):
            stopped.suspend()
            time.sleep(1.0)
            stopped.resume()
            time.sleep(0.1)
        output, errors = process.communicate(timeout=30)
    assert (output, errors) == ("two \n", "")


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_an_event_loop_that_is_slow_does_not_give_up_its_server(server: TritonServer, scheme: str) -> None:
    """Other tasks prolong each turn of the loop beyond a tick of the detector."""
    url = server.grpc_url if scheme == "grpc" else f"http://{server.http_url}"

    async def block(ended: asyncio.Event) -> None:
        while not ended.is_set():
            time.sleep(0.2)
            await asyncio.sleep(0)

    async def ask() -> str:
        ended = asyncio.Event()
        async with AsyncClient(url, retry=ONCE, timeouts=LONGER) as client, asyncio.TaskGroup() as group:
            group.create_task(block(ended))
            answer = await client.generate("!gap 6000 one")
            ended.set()
        return answer.text

    assert asyncio.run(ask()) == "one "


def test_nothing_is_left(way: Way, severable: Link) -> None:
    before = our_threads()
    client = way.client(severable.address, timeouts=LONGER)
    assert client.generate("one").text == "one "
    # Without a request there is no watch.
    assert eventually(lambda: not [each for each in threading.enumerate() if "failure-detector" in each.name])
    waiting = client.stream("!gap 20000 one")
    with ThreadPoolExecutor() as pool:
        future = pool.submit(waiting.completion)
        assert not eventually(future.done, 0.5)
        severable.sever()
        # A probe runs now.
        assert not eventually(future.done, 0.8)
        closed_of(client)()
        with pytest.raises(RequestCancelled):
            future.result(10)
    client.close()
    assert eventually(lambda: our_threads() <= before)


def test_tasks_end_with_the_requests_and_with_the_client(server: TritonServer) -> None:
    async def tasks_left(url: str, close_early: bool) -> int:
        client = AsyncClient(url, retry=ONCE, timeouts=TIMES)
        waiting = asyncio.create_task(client.generate("!gap 20000 one"))
        await asyncio.sleep(0.5)
        if close_early:
            await client.close()
        else:
            waiting.cancel()
        with pytest.raises((RequestCancelled, asyncio.CancelledError)):
            await waiting
        for _ in range(100):
            if len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.02)
        left = len(asyncio.all_tasks()) - 1
        await client.close()
        return left

    with ExitStack() as stack:
        for scheme, port in (("grpc://", server.grpc_port), ("http://", server.http_port)):
            severable = stack.enter_context(link(port))
            for close_early in (False, True):
                assert asyncio.run(tasks_left(scheme + severable.address, close_early)) == 0


@pytest.mark.parametrize(("unreachable", "seconds"), [(4.0, 1), (0.1, 1), (20.0, 5), (None, None)])
def test_tcp_s_own_probes_end_a_connection_that_is_dead_while_others_live(
    server: TritonServer, unreachable: float | None, seconds: int | None
) -> None:
    """No test without a network of its own can have such a connection."""

    async def found() -> list[int]:
        _, options = connection_options(server.http_url, None, None, Timeouts(unreachable=unreachable))
        connection = AsyncHttpConnection(options)
        response = await connection.client.get("/v2/health/live")
        end = response.extensions["network_stream"].get_extra_info("socket")
        values = [end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
        values += [
            end.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
        await connection.close()
        return values

    is_on, *values = asyncio.run(found())
    assert is_on == (seconds is not None)
    assert seconds is None or values == [seconds, seconds, 3]


@pytest.mark.parametrize("kind", [Client, Blocking])
def test_an_error_is_an_answer_too(kind: Any) -> None:
    """The server knows no health checks, or they are restricted."""

    def answer(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        time.sleep(4)
        context.abort(grpc.StatusCode.NOT_FOUND, "in the end")
        yield b""

    def refuse(_: bytes, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted")

    methods = {
        "ModelStreamInfer": grpc.unary_stream_rpc_method_handler(answer),
        "ServerLive": grpc.unary_unary_rpc_method_handler(refuse),
    }
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with (
            kind(f"127.0.0.1:{port}", retry=ONCE, timeouts=LONGER) as client,
            pytest.raises(ModelNotReady, match="in the end"),
        ):
            client.generate("one")
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_bound_that_makes_no_sense(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"unreachable is {seconds}"):
        Timeouts(unreachable=seconds)
