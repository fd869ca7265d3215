"""The client's parts that need no server."""

import asyncio
import math
import multiprocessing
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from inflight_client import (
    AsyncTextStream,
    Client,
    InvalidRequest,
    ModelNotReady,
    RetryPolicy,
    ServerFault,
    TextStream,
    Timeouts,
    TransportError,
    Usage,
)
from inflight_client import watchdog as watchdog_module
from inflight_client.errors import error_of_model
from inflight_client.metrics import parse_metrics
from inflight_client.options import TimeLimits, metrics_url_of
from inflight_client.request import Request, make_request
from inflight_client.response import Reply
from inflight_client.transport import http_wire
from inflight_client.watchdog import Watchdog

TEXT = r"""
# HELP waiting Requests.
# TYPE waiting gauge
waiting{model="llm",version="1"} 3
waiting{model="a \"b\",{c=\\d}\ne",version="1"} 4.5
# TYPE tokens counter
tokens{model="llm"} 12
total 7e3 1700000000
seconds_bucket{le="+Inf"} 9
nothing NaN
"""


def test_the_name_of_a_model_stays_one_part_of_the_path() -> None:
    assert http_wire.model_path("../llm?a=1#b") == "/v2/models/..%2Fllm%3Fa%3D1%23b"


def test_what_cannot_be_a_header_is_left_out_of_them() -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"

    def headers(state: str) -> dict[str, str]:
        return make_request("llm", "a", None, {"traceparent": parent, "tracestate": state}, stream=True).headers

    assert headers(" a=1 ") == {"traceparent": parent, "tracestate": "a=1"}
    assert headers("a=\n") == headers("a=é") == {"traceparent": parent}


@pytest.mark.parametrize("reason", ["'llm' has no available versions", "'llm' version 1 is not at ready state"])
def test_a_model_that_was_being_loaded_was_not_ready(reason: str) -> None:
    """The message alone decides: the model may be ready when the server is asked."""
    assert isinstance(error_of_model(f"Request for unknown model: {reason}"), ModelNotReady)


def test_a_tensor_that_does_not_fit_may_mean_either() -> None:
    assert error_of_model("unexpected inference input 'stream' for model 'completion'") is None


def test_metrics_are_read() -> None:
    snapshot = parse_metrics(TEXT)
    assert snapshot.value("waiting") == 7.5
    assert snapshot.value("waiting", model="llm") == 3
    assert snapshot.value("waiting", model='a "b",{c=\\d}\ne') == 4.5
    assert snapshot.value("tokens") == 12
    assert snapshot.value("total") == 7000
    assert [sample.labels for sample in snapshot.select("seconds_bucket")] == [{"le": "+Inf"}]
    with pytest.raises(KeyError, match="no metric absent"):
        snapshot.value("absent")
    with pytest.raises(KeyError, match="llama"):
        snapshot.value("waiting", model="llama")


@pytest.mark.parametrize(
    "text", ["<html> <body>Not here</body></html>", "waiting", 'waiting{model="llm"}', "waiting x"]
)
def test_what_is_not_metrics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"metric name|not found|unpack|convert"):
        parse_metrics(text)


def test_watchdog_acts_once_in_order_and_not_when_done(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0.0]
    # Time stands still until all is set up, however long that takes.
    monkeypatch.setattr(watchdog_module, "time", SimpleNamespace(monotonic=lambda: times[-1]))
    watchdog = Watchdog()
    happened: list[str] = []
    last = threading.Event()
    late = watchdog.watch(0.2, lambda: (happened.append("late"), last.set()))
    early = watchdog.watch(0.05, lambda: happened.append("early"))
    never = watchdog.watch(0.1, lambda: happened.append("never"))
    never.done()
    times.append(1.0)
    assert last.wait(30)
    assert happened == ["early", "late"]
    assert (early.expired, never.expired, late.expired) == (True, False, True)
    late.expire()
    assert happened == ["early", "late"]
    watchdog.close()


def test_watchdog_without_work_has_no_thread_and_ends_before_its_watches_are_due() -> None:
    idle = Watchdog()
    assert idle._thread is None
    idle.close()
    watchdog = Watchdog()
    watch = watchdog.watch(60, lambda: None)
    thread = watchdog._thread
    assert thread is not None
    assert thread.is_alive()
    watchdog.close()
    assert not thread.is_alive()
    assert time.monotonic() < watch.at


@pytest.mark.parametrize(
    ("address", "host"), [("h", "h"), ("h:8001", "h"), ("[::1]", "[::1]"), ("[::1]:8001", "[::1]"), ("h:", "h")]
)
def test_the_metrics_are_on_the_same_host(address: str, host: str) -> None:
    assert metrics_url_of(address) == f"http://{host}:8002/metrics"


def test_what_is_nested_too_deeply_for_json_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="can't be written as JSON"):
        make_request("llm", None, nested, {}, stream=True)


def test_a_parameter_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^top_p can't be written as JSON"):
        make_request("llm", "one", None, {"temperature": 0.5, "top_p": math.nan}, stream=True)


def test_a_limit_that_is_no_float_is_left_to_the_server() -> None:
    assert make_request("llm", "one", None, {"deadline_ms": 10**400}, stream=True).seconds > 1e15


class Scripted:
    """A connection and a call, whose replies are those of a generator. Cancelling it does nothing."""

    def __init__(self, replies: Callable[[], Generator[Reply, None, None]]) -> None:
        self.replies: Any = replies

    def start(self, request: Request, limits: TimeLimits) -> Any:
        return self

    def cancel(self) -> None:
        pass


def text(written: str, finish_reason: str = "None") -> Reply:
    return Reply([written], [finish_reason], [], [], Usage(1, 1))


def asked() -> Request:
    return make_request("llm", "one", None, {}, stream=True)


def cut_after_its_end() -> Generator[Reply, None, None]:
    yield text("a")
    yield text("b", "stop")
    raise TransportError("the connection was cut")


def test_a_complete_answer_stays_one_though_the_end_of_the_stream_is_cut() -> None:
    connection: Any = Scripted(cut_after_its_end)
    with TextStream(connection, asked(), Timeouts(), RetryPolicy()) as stream:
        assert stream.completion().text == "ab"


def test_a_complete_answer_stays_one_for_asyncio_too() -> None:
    async def replies() -> AsyncGenerator[Reply, None]:
        for reply in cut_after_its_end():
            yield reply

    async def scenario() -> str:
        connection: Any = Scripted(replies)  # type: ignore[arg-type]
        async with AsyncTextStream(connection, asked(), Timeouts(), RetryPolicy()) as stream:
            return (await stream.completion()).text

    assert asyncio.run(scenario()) == "ab"


def test_a_stream_can_be_left_while_another_thread_reads_it() -> None:
    reading, left = threading.Event(), threading.Event()

    def replies() -> Generator[Reply, None, None]:
        reading.set()
        assert left.wait(10)
        yield text("a", "stop")

    connection: Any = Scripted(replies)
    with ThreadPoolExecutor(1) as thread:
        with TextStream(connection, asked(), Timeouts(), RetryPolicy()) as stream:
            answer = thread.submit(stream.completion)
            assert reading.wait(10)
        left.set()
        assert answer.result(10).text == "a"


@pytest.mark.parametrize(
    "sampling",
    [{"n": 2.0}, {"n": None, "beam_width": 2}, {"sampling_parameters": {"num_return_sequences": 2}}, {"n": 2**40}],
    ids=str,
)
def test_the_server_says_how_many_answers_there_are(sampling: Any) -> None:
    request = make_request("llm", "one", None, sampling, stream=True)
    connection: Any = Scripted(lambda: (reply for reply in [Reply(["a", "b"], ["stop", "stop"], [], [], Usage(1, 2))]))
    with TextStream(connection, request, Timeouts(), RetryPolicy()) as stream:
        assert [choice.text for choice in stream.completion().choices] == ["a", "b"]


def test_another_number_of_answers_later_is_a_fault() -> None:
    connection: Any = Scripted(lambda: (reply for reply in [text("a"), Reply(["a", "b"], [], [], [], None)]))
    with (
        TextStream(connection, asked(), Timeouts(), RetryPolicy()) as stream,
        pytest.raises(ServerFault, match="2 answers after a response with 1"),
    ):
        stream.completion()


def _use_the_client_of_the_parent(client: Client) -> None:
    with pytest.raises(RuntimeError, match="make a new one"):
        client.is_ready()
    client.close()
    os._exit(0)  # Without the clean-up of the parent's tests.


def test_a_forked_process_is_told_to_make_a_client_of_its_own() -> None:
    with Client("http://127.0.0.1:1") as client:
        child = multiprocessing.get_context("fork").Process(target=_use_the_client_of_the_parent, args=(client,))
        child.start()
        child.join(30)
        status = child.exitcode
        child.kill()
        child.join()
    assert status == 0


def test_an_error_of_http_without_a_text_has_that_of_its_cause() -> None:
    error = httpx.ConnectError("")
    error.__cause__ = OSError("the handshake failed")
    assert str(http_wire.error_of_httpx(error)) == "the handshake failed"
    assert str(http_wire.error_of_httpx(httpx.ConnectError(""))) == "ConnectError"
