"""The trace tells of every request and every step, and its file is whole at any time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inflight import trace as trace_module
from inflight.core import EngineCore
from inflight.errors import OutOfMemory
from inflight.request import STOP
from inflight.request_options import RequestOptions
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler import Scheduler
from inflight.step_result import StepResult
from inflight.trace import Trace
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_drafter import FakeDrafter
from tests.unit.fake_model import FakeModel
from tests.unit.traces import ReadTrace, check_trace, read_trace

FIXED = {"num_speculative_tokens": 3, "adaptive": False}


class Harness:
    """A traced core whose steps take a millisecond each."""

    def __init__(self, path: Path, scheduler: Scheduler | None = None) -> None:
        self.path = path
        self.now = 100.0
        self.poison: set[str] = set()
        self.most_tokens = sys.maxsize
        """There is no memory for a step of more tokens."""
        scheduler = scheduler or make_scheduler()
        self._model = FakeModel(scheduler.tables.block_size)
        self.trace = Trace(str(path), scheduler.limit.tokens, lambda: self.now)
        self.core = EngineCore(scheduler, self, max_queue_size=100, clock=lambda: self.now, trace=self.trace)

    def run(self, plan: StepPlan) -> list[StepResult]:
        """The runner's part."""
        self.now += 0.001
        if plan.num_tokens > self.most_tokens:
            raise OutOfMemory
        if self.poison & {share.request.request_id for share in plan.scheduled}:
            raise RuntimeError("out of luck")
        return self._model.run(plan)

    def submit(self, name: str, prompt: int = 4, **settings: int) -> None:
        self.core.submit(make_request(name, prompt, arrival=self.now, **settings))

    def drain(self) -> ReadTrace:
        for _ in range(1000):
            if not self.core.has_work:
                self.trace.flush()
                trace = read_trace(self.path)
                check_trace(trace, self.core.stats().computed_tokens)
                return trace
            self.core.step()
        raise AssertionError("the core does not come to rest")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_a_request_from_arrival_to_end(path: Path) -> None:
    harness = Harness(path, make_scheduler(budget=4))
    harness.submit("a", 6, max_tokens=3)
    harness.now += 0.5
    request = harness.drain().requests["a"]
    assert (request.begin, request.end) == (0, 504_000)
    assert request.args == {"request_id": "a", "prompt_tokens": 6, "finish_reason": "length", "output_tokens": 3}
    assert [(span.name, span.begin, span.end) for span in request.inner] == [
        ("queued", 0, 500_000),
        ("prefill", 500_000, 502_000),
        ("decode", 502_000, 504_000),
    ]
    assert [span.name for phase in request.inner for span in phase.inner] == ["chunk of 4", "chunk of 2"] + [
        "token"
    ] * 2


def test_steps_say_who_was_in_them(path: Path) -> None:
    harness = Harness(path, make_scheduler(budget=8, max_num_seqs=2))
    for name in "abc":
        harness.submit(name, 5, max_tokens=2)
    trace = harness.drain()
    assert [step["args"]["requests"] for step in trace.steps[:2]] == [{"a": 5, "b": 3}, {"a": 1, "b": 2}]
    assert trace.counters["requests"][0] == {"running": 2, "waiting": 1}
    assert trace.counters["tokens in the step"][0] == {"tokens": 8}
    assert trace.counters["KV cache"][-1] == {"blocks used": 0}


def test_a_preempted_request_waits_and_computes_again(path: Path) -> None:
    harness = Harness(path, make_scheduler(num_blocks=4, block_size=2, budget=16, next_tokens=0, prefix_caching=False))
    harness.submit("a", 4, max_tokens=4)
    harness.submit("b", 4, max_tokens=4)
    trace = harness.drain()
    assert trace.phases("a") == ["queued", "prefill", "decode"]
    assert trace.phases("b")[:5] == ["queued", "prefill", "decode", "preempted", "recompute"]
    assert trace.requests["b"].args["output_tokens"] == 4


def test_a_request_preempted_for_lack_of_memory_waits_and_computes_again(path: Path) -> None:
    harness = Harness(path, make_scheduler(budget=16))
    harness.submit("a", 4, max_tokens=4)
    harness.submit("b", 4, max_tokens=4)
    harness.core.step()
    harness.most_tokens = 1
    trace = harness.drain()
    assert trace.phases("a") == ["queued", "prefill", "decode"]
    assert trace.phases("b") == ["queued", "prefill", "decode", "preempted", "recompute", "decode"]
    assert [step["args"]["requests"] for step in trace.failed] == [{"a": 1, "b": 1}]


def test_cancelled_stopped_and_failed_requests_end(path: Path) -> None:
    harness = Harness(path, make_scheduler(max_num_seqs=2))
    for name in ("stopped", "cancelled", "never ran", "failed"):
        harness.submit(name, 4, max_tokens=5)
    harness.core.step()
    harness.core.cancel("stopped", STOP)
    harness.core.cancel("cancelled")
    harness.core.cancel("never ran")
    harness.poison = {"failed"}
    trace = harness.drain()
    assert {name: span.args["finish_reason"] for name, span in trace.requests.items()} == {
        "stopped": "stop",
        "cancelled": "cancelled",
        "never ran": "cancelled",
        "failed": "error",
    }
    assert trace.phases("never ran") == ["queued"]
    assert [step["args"]["requests"] for step in trace.failed] == [{"failed": 4}]


def test_the_file_is_whole_after_every_flush_and_shows_who_still_runs(path: Path) -> None:
    harness = Harness(path)
    harness.submit("a", max_tokens=3)
    for _ in range(3):
        harness.core.step()
        harness.trace.flush()
        trace = read_trace(path)
    assert len(trace.steps) == 3
    harness.submit("b")
    harness.core.step()
    harness.trace.flush()
    trace = read_trace(path)
    assert trace.requests["a"].end is not None
    assert trace.requests["b"].end is None


def test_the_clients_trace_is_named(path: Path) -> None:
    harness = Harness(path)
    request = make_request("a", arrival=harness.now)
    request.options = RequestOptions(trace_context={"traceparent": "00-1-2-01"}, client_request_id="mine")
    harness.core.submit(request)
    args = harness.drain().requests["a"].args
    assert args["opentelemetry"] == {"traceparent": "00-1-2-01"}
    assert args["client_request_id"] == "mine"


def test_the_file_does_not_grow_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MAX_BYTES", 5_000)
    harness = Harness(path)
    for i in range(100):
        harness.submit(f"{i}")
        harness.core.step()
        harness.trace.flush()
    assert 5_000 < path.stat().st_size < 10_000
    assert json.loads(path.read_text())


def test_a_disk_that_is_full_ends_the_trace_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(path)

    def no_space() -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(harness.trace, "_write", no_space)
    for name in "ab":
        harness.submit(name)
        harness.core.step()
        harness.trace.flush()
    assert [record.message for record in caplog.records] == ["the trace ends here: No space left on device"]


def test_a_disk_that_gets_full_leaves_a_complete_file(path: Path) -> None:
    """In a process of its own, as the limit holds for all files of a process."""
    run = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    assert "the trace ends here" in run.stderr
    assert run.stdout.split() == ["0", "0", "2"]
    assert json.loads(path.read_text())
    assert 0 < path.stat().st_size <= 3000


FULL_DISK = """
import gc, resource, signal, sys, weakref
from pathlib import Path
from inflight.lora.adapter import Adapter
from tests.unit.test_trace import Harness

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
harness, given_back = Harness(Path(sys.argv[1])), []
for name in "ab":
    harness.submit(name)
for request in harness.core._unfinished.values():
    request.adapter = Adapter(request.request_id, 0, "")
    weakref.finalize(request.adapter, given_back.append, request.request_id)
del request
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
while harness.core.has_work:
    harness.core.step()
    harness.trace.flush()
gc.collect()
print(len(harness.trace._tracks), len(harness.trace._records), len(given_back))
"""


def test_a_model_that_is_loaded_again_and_its_old_process_write_to_files_of_their_own(path: Path) -> None:
    old = Harness(path)
    old.submit("old", max_tokens=20)
    old.core.step()
    old.trace.flush()
    new = Harness(path)
    new.submit("new", max_tokens=2)
    assert new.drain().requests.keys() == {"new"}
    old.core.step()
    old.trace.flush()
    assert read_trace(path).requests.keys() == {"new"}


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trace_file is .*/trace.json', which cannot be written: No such file"):
        Trace(str(tmp_path / "missing" / "trace.json"), 8)


def test_drafts_are_in_slices_steps_and_at_the_end(path: Path) -> None:
    harness = Harness(path, make_scheduler(drafter=FakeDrafter("half right"), speculative_config=FIXED))
    harness.submit("a", 4, max_tokens=20)
    trace = harness.drain()
    stats, request = harness.core.stats(), trace.requests["a"]
    assert 0 < stats.accepted_draft_tokens < stats.draft_tokens
    slices = [span for phase in request.inner for span in phase.inner if "drafted_tokens" in span.args]
    steps = [step["args"] for step in trace.steps if "drafted_tokens" in step["args"]]
    for counted in (slices[0].args, steps[0]):
        assert counted["drafted_tokens"] == 3
    for found in ([span.args for span in slices], steps, [request.args]):
        assert sum(args["drafted_tokens"] for args in found) == stats.draft_tokens
        assert sum(args["accepted_tokens"] for args in found) == stats.accepted_draft_tokens
    assert slices[0].name == f"token + 3 drafted, {slices[0].args['accepted_tokens']} right"
