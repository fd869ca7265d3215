"""The client's parts that need no server."""

import threading
import time

import pytest

from inflight_client.metrics import parse_metrics
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


def test_watchdog_acts_once_in_order_and_not_when_done() -> None:
    watchdog = Watchdog()
    happened: list[str] = []
    last = threading.Event()
    late = watchdog.watch(0.2, lambda: (happened.append("late"), last.set()))
    early = watchdog.watch(0.05, lambda: happened.append("early"))
    never = watchdog.watch(0.1, lambda: happened.append("never"))
    never.done()
    assert last.wait(5)
    assert happened == ["early", "late"]
    assert (early.expired, never.expired, late.expired) == (True, False, True)
    late.expire()
    assert happened == ["early", "late"]
    watchdog.close()


def test_watchdog_without_work_has_no_thread_and_ends_at_once() -> None:
    before = threading.active_count()
    Watchdog().close()
    watchdog = Watchdog()
    watchdog.watch(60, lambda: None)
    assert threading.active_count() == before + 1
    started = time.monotonic()
    watchdog.close()
    assert threading.active_count() == before
    assert time.monotonic() - started < 5
