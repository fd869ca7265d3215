"""Spans of requests on a core, as a receiver of OTLP gets them."""

import itertools
import logging
import sys
import time
from collections.abc import Iterator

import pytest

from inflight import EngineConfig, RequestOptions
from inflight.core import EngineCore
from inflight.outputs import OutputProcessor
from inflight.request import Request
from inflight.request_spans import RequestSpans
from inflight.scheduler.scheduler import Scheduler
from inflight.tracing import make_spans
from tests.otlp_receiver import Receiver, Span, otlp_receiver
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_drafter import FakeDrafter
from tests.unit.fake_model import FakeModel

PARENT = "b7ad6b7169203331"
EXPORTER = "opentelemetry.exporter.otlp."
"""How the names of its loggers begin. The words of its lines change from version to version."""


def trace_id(number: int) -> str:
    return f"{number:032x}"


def traced(name: str, number: int, *, flags: str = "01", **settings: int) -> Request:
    """A request of a caller with a trace of its own."""
    context = {"traceparent": f"00-{trace_id(number)}-{PARENT}-{flags}"}
    return make_request(name, arrival=time.monotonic(), options=RequestOptions(trace_context=context), **settings)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as receiver:
        yield receiver


class Traced:
    """A core whose finished requests get spans."""

    def __init__(self, receiver: Receiver, scheduler: Scheduler | None = None) -> None:
        scheduler = scheduler or make_scheduler()
        self._receiver = receiver
        self._spans = RequestSpans(receiver.url)
        self._processor = OutputProcessor(None)
        self.core = EngineCore(scheduler, FakeModel(scheduler.tables.block_size), max_queue_size=100)

    def step(self) -> None:
        self._spans.add(self._processor.process(self.core.step())[0])

    def finish(self) -> dict[str, list[Span]]:
        """Run all requests to their ends, and return their spans by trace: the whole request, then its phases."""
        while self.core.has_work:
            self.step()
        self._spans.flush()
        self._spans.close()
        found: dict[str, list[Span]] = {}
        for span in sorted(self._receiver.spans, key=lambda span: (span.kind != "SERVER", span.start)):
            found.setdefault(span.trace_id, []).append(span)
        return found


def check(spans: list[Span]) -> list[str]:
    """One span has all others within it, one after the other; returns the names of those."""
    whole, *parts = spans
    assert (whole.name, whole.kind, whole.service) == ("llm_request", "SERVER", "inflight")
    assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
    assert all(before.end == after.start for before, after in itertools.pairwise(parts))
    assert {part.parent_id for part in parts} == {whole.span_id}
    return [part.name for part in parts]


def test_a_request_from_arrival_to_end(receiver: Receiver) -> None:
    harness = Traced(receiver)
    before = time.time_ns()
    harness.core.submit(traced("a", 1, max_tokens=3))
    (spans,) = harness.finish().values()
    assert check(spans) == ["queued", "prefill", "decode"]
    whole, _, prefill, _ = spans
    assert (whole.trace_id, whole.parent_id, whole.failed) == (trace_id(1), PARENT, False)
    assert before - 1_000_000 < whole.start < whole.end < time.time_ns() + 1_000_000
    assert whole.events == {"first token": prefill.end}
    for name, value in {
        "gen_ai.request.id": "a",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 3,
        "inflight.preemptions": 0,
    }.items():
        assert whole.attributes[name] == value, name
    latency = {
        name: whole.attributes[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_to_first_token", "e2e")
    }
    assert 0 < latency["time_in_queue"] < latency["time_to_first_token"] < latency["e2e"]
    assert latency["e2e"] == pytest.approx((whole.end - whole.start) / 1e9)


def test_the_caller_decides_who_has_spans(receiver: Receiver) -> None:
    harness = Traced(receiver)
    harness.core.submit(traced("sampled", 1))
    harness.core.submit(traced("not sampled", 2, flags="00"))
    harness.core.submit(make_request("without a caller", arrival=time.monotonic()))
    invalid = RequestOptions(trace_context={"traceparent": "00-1-2-01", "tracestate": "?"})
    harness.core.submit(make_request("invalid", arrival=time.monotonic(), options=invalid))
    assert harness.finish().keys() == {trace_id(1)}


def test_an_invalid_tracestate_is_ignored_without_a_line_in_the_log(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Traced(receiver)
    for number, state in enumerate(("No=1", "=", "a=1\nanother line", ",".join(f"k{i}=1" for i in range(40))), start=1):
        request = traced("r", number)
        context = {**(request.options.trace_context or {}), "tracestate": state}
        options = RequestOptions(trace_context=context)
        harness.core.submit(make_request(f"r{number}", arrival=time.monotonic(), options=options))
    assert harness.finish().keys() == {trace_id(number) for number in range(1, 5)}
    assert caplog.messages == []


def test_the_environment_can_decide_otherwise(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    harness = Traced(receiver)
    harness.core.submit(make_request("without a caller", arrival=time.monotonic()))
    (spans,) = harness.finish().values()
    assert {span.service for span in spans} == {"mine"}
    assert spans[0].parent_id == ""


def test_cancelled_and_late_requests(receiver: Receiver) -> None:
    harness = Traced(receiver, make_scheduler(max_num_seqs=1))
    harness.core.submit(traced("cancelled", 1, max_tokens=50))
    late = traced("late", 2)
    late.deadline = time.monotonic()
    harness.core.submit(late)
    for _ in range(3):
        harness.step()
    harness.core.cancel("cancelled")
    found = harness.finish()
    assert check(found[trace_id(1)]) == ["queued", "prefill", "decode"]
    assert check(found[trace_id(2)]) == ["queued"]
    cancelled, late_span = (found[trace_id(number)][0] for number in (1, 2))
    assert (cancelled.attributes["gen_ai.response.finish_reasons"], cancelled.failed) == (["cancelled"], False)
    assert cancelled.attributes["gen_ai.usage.output_tokens"] == 3
    assert (late_span.attributes["error.type"], late_span.failed) == ("expired", True)
    assert "gen_ai.latency.time_in_queue" not in late_span.attributes


def test_preempted_and_drafting_requests(receiver: Receiver) -> None:
    scheduler = make_scheduler(
        num_blocks=6,
        block_size=2,
        next_tokens=0,
        prefix_caching=False,
        drafter=FakeDrafter("half right"),
        speculative_config={"num_speculative_tokens": 3, "adaptive": False},
    )
    harness = Traced(receiver, scheduler)
    for number, name in enumerate("ab", 1):
        harness.core.submit(traced(name, number, max_tokens=8))
    found = harness.finish()
    assert scheduler.preemptor.num_preemptions > 0
    names = check(found[trace_id(2)])
    assert names[:3] == ["queued", "prefill", "decode"]
    assert names[3:6] == ["preempted", "recompute", "decode"]
    wholes = [found[trace_id(number)][0].attributes for number in (1, 2)]
    assert sum(whole["inflight.preemptions"] for whole in wholes) == scheduler.preemptor.num_preemptions
    stats = harness.core.stats()
    assert 0 < sum(whole["inflight.drafted_tokens"] for whole in wholes) == stats.draft_tokens
    assert 0 < sum(whole["inflight.accepted_tokens"] for whole in wholes) == stats.accepted_draft_tokens


def test_a_receiver_that_is_not_there_hurts_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with otlp_receiver() as gone:
        pass
    harness = Traced(gone)
    harness.core.submit(traced("a", 1))
    assert harness.finish() == {}
    assert logging.ERROR in {record.levelno for record in caplog.records if record.name.startswith(EXPORTER)}


def test_the_setting_is_checked_and_its_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"otlp_traces_endpoint is 'collector:4318'; it must begin with http://"):
        EngineConfig(model="x", otlp_traces_endpoint="collector:4318")
    assert make_spans(None) is None
    monkeypatch.delitem(sys.modules, "inflight.request_spans")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ValueError, match="opentelemetry is not installed; it needs the packages opentelemetry-sdk and"):
        make_spans("http://127.0.0.1:4318")
