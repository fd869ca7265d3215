"""The engine's loop on a thread of its own, with clients on others."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from inflight import EngineDead, InvalidRequest, RequestOptions
from inflight.core import EngineCore
from inflight.outputs import TokenEvent
from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler import Scheduler
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_model import FakeModel, expected_output

TIMEOUT = 60.0


class Harness:
    """A core whose loop runs on a thread; ends with the test."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.model = FakeModel(scheduler.tables.block_size)
        self.core = EngineCore(scheduler, self.model, max_queue_size=10_000)
        self.events: list[TokenEvent] = []
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def _run(self) -> None:
        try:
            self.core.run(self._sink)
        except BaseException as fault:  # noqa: BLE001 - the test looks at it
            self.failure = fault

    def _sink(self, events: list[TokenEvent]) -> None:
        with self._changed:
            self.events += events
            self._changed.notify_all()

    def wait_until(self, reached: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(reached, TIMEOUT)

    def ends(self) -> dict[str, str | None]:
        """Finish reasons by request id; no request may end twice."""
        finals = [(e.request.request_id, e.finish_reason) for e in self.events if e.finish_reason is not None]
        assert max(Counter(name for name, _ in finals).values(), default=1) == 1
        return dict(finals)

    def wait_for_ends(self, *names: str) -> None:
        self.wait_until(lambda: set(names) <= self.ends().keys())

    def join(self) -> None:
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness(make_scheduler(num_blocks=24, block_size=4, budget=24, max_num_seqs=6))
    yield harness
    harness.core.close()
    if harness.thread.ident is not None:
        harness.join()


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` ... `work(count - 1)` on threads that start together; raises what they raise."""
    faults: list[BaseException] = []
    together = threading.Barrier(count)

    def body(number: int) -> None:
        try:
            together.wait(TIMEOUT)
            work(number)
        except BaseException as fault:  # noqa: BLE001 - the test looks at it
            faults.append(fault)

    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert faults == []


def test_requests_from_many_threads_each_end_once_with_their_own_tokens(harness: Harness) -> None:
    harness.thread.start()
    requests: dict[str, Request] = {}

    def client(number: int) -> None:
        for turn in range(20):
            request = make_request(f"{number}-{turn}", [number % 3] * (turn % 9 + 1), max_tokens=turn % 7 + 1)
            requests[request.request_id] = request
            harness.core.submit(request)
            if turn % 3 == 0:
                harness.core.cancel(request.request_id)

    in_threads(8, client)
    harness.wait_for_ends(*requests)
    reasons = harness.ends()
    for name, request in requests.items():
        tokens = [token for e in harness.events if e.request is request for token in e.token_ids]
        expected, reason = expected_output(request)
        if reasons[name] == "cancelled":
            assert int(name.split("-")[1]) % 3 == 0
            assert tokens == expected[: len(tokens)]
        else:
            assert (tokens, reasons[name]) == (expected, reason)
    assert harness.core.stats().blocks_used == 0


def test_of_many_requests_with_one_id_one_is_taken(harness: Harness) -> None:
    taken: list[int] = []

    def client(number: int) -> None:
        try:
            harness.core.submit(make_request("same"))
        except InvalidRequest:
            return
        taken.append(number)

    in_threads(8, client)
    assert len(taken) == 1


def test_an_id_stays_taken_while_its_request_is_being_preempted(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients submit while the stepping thread moves requests between the queue and the running ones."""
    tables = harness.scheduler.tables
    release, refusals = tables.release, []

    def submit_again(name: str) -> None:
        try:
            harness.core.submit(make_request(name))
        except InvalidRequest as refusal:
            refusals.append(refusal)

    def release_while_a_client_submits(request: Request) -> None:
        release(request)
        if request.num_output < request.max_tokens:
            client = threading.Thread(target=submit_again, args=(request.request_id,), daemon=True)
            client.start()
            client.join(TIMEOUT)

    monkeypatch.setattr(tables, "release", release_while_a_client_submits)
    for name in "ab":
        harness.core.submit(make_request(name, 40, max_tokens=20))
    while harness.scheduler.preemptor.num_preemptions == 0:
        harness.core.step()
    assert len(refusals) == 1


def test_the_idle_loop_waits_without_a_timeout(harness: Harness) -> None:
    timeouts: list[float | None] = []

    class Watched(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            timeouts.append(timeout)
            return super().wait(timeout)

    harness.core._wake = Watched()
    harness.thread.start()
    for name in "abc":
        harness.core.submit(make_request(name, 4, max_tokens=3))
        harness.wait_for_ends(name)
    harness.core.close()
    harness.join()
    assert set(timeouts) <= {None}
    assert harness.core.stats().steps == 9


def test_close_ends_an_idle_loop_and_refuses_requests(harness: Harness) -> None:
    harness.thread.start()
    harness.core.submit(make_request("a"))
    harness.wait_for_ends("a")
    harness.core.close()
    harness.join()
    assert harness.failure is None
    with pytest.raises(EngineDead, match="closed"):
        harness.core.submit(make_request("b"))


def test_an_idle_loop_that_is_aborted_fails_and_refuses_requests(harness: Harness) -> None:
    harness.thread.start()
    fault = EngineDead("a rank has ended")
    harness.core.abort(fault)
    harness.join()
    assert harness.failure is fault
    with pytest.raises(EngineDead, match="the engine has stopped: a rank has ended"):
        harness.core.submit(make_request("a"))


def waits_for_a_batch(monkeypatch: pytest.MonkeyPatch, harness: Harness) -> None:
    """Start the thread with a request, and return when it waits for others."""
    waits = threading.Event()
    wait_for = harness.core._wake.wait_for

    def watched(predicate: Callable[[], object], timeout: float | None = None) -> object:
        if timeout is not None:
            waits.set()
        return wait_for(predicate, timeout)

    monkeypatch.setattr(harness.core._wake, "wait_for", watched)
    harness.core.submit(make_request("a", arrival=time.monotonic()))
    harness.thread.start()
    assert waits.wait(TIMEOUT)


def test_a_batch_that_still_fills_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(make_scheduler(batching_strategy="static", batch_wait_ms=3_600_000.0))
    waits_for_a_batch(monkeypatch, harness)
    fault = EngineDead("a rank has ended")
    harness.core.abort(fault)
    harness.join()
    assert harness.failure is fault
    assert harness.ends() == {"a": "error"}


def test_a_batch_may_fill_for_longer_than_a_thread_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(make_scheduler(max_num_seqs=2, batching_strategy="static", batch_wait_ms=1e30))
    waits_for_a_batch(monkeypatch, harness)
    harness.core.submit(make_request("b", arrival=time.monotonic()))
    harness.wait_for_ends("a", "b")
    harness.core.close()
    harness.join()
    assert harness.failure is None


def test_an_engine_that_dies_in_a_step_runs_no_other(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(plan: StepPlan) -> None:
        raise EngineDead("a rank has ended")

    monkeypatch.setattr(harness.model, "run", run)
    harness.core.submit(make_request("a"))
    harness.thread.start()
    harness.wait_for_ends("a")
    harness.join()
    assert isinstance(harness.failure, EngineDead)
    assert harness.ends() == {"a": "error"}


def test_a_loop_that_was_closed_before_it_began_returns_at_once(harness: Harness) -> None:
    harness.core.close()
    harness.thread.start()
    harness.join()
    assert harness.failure is None


def test_close_waits_for_the_current_step_only(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on, run = threading.Event(), threading.Event(), harness.model.run

    def slow(plan: StepPlan):  # type: ignore[no-untyped-def]
        inside.set()
        assert go_on.wait(TIMEOUT)
        return run(plan)

    monkeypatch.setattr(harness.model, "run", slow)
    harness.thread.start()
    harness.core.submit(make_request("a", max_tokens=8))
    assert inside.wait(TIMEOUT)
    harness.core.close()
    assert harness.thread.is_alive()
    go_on.set()
    harness.join()
    assert [token for event in harness.events for token in event.token_ids] == expected_output(
        make_request("a", max_tokens=1)
    )[0]


def break_after(harness: Harness, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler itself break at its next step but `steps`."""
    schedule, count = harness.scheduler.schedule, iter(range(steps))

    def breaking(now: float) -> StepPlan:
        if next(count, None) is None:
            raise OSError("bookkeeping is lost")
        return schedule(now)

    monkeypatch.setattr(harness.scheduler, "schedule", breaking)


def test_when_the_loop_dies_every_request_ends_with_an_error(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    break_after(harness, 2, monkeypatch)
    names = [f"{number}" for number in range(12)]  # More than may run, so some die waiting.
    for name in names:
        harness.core.submit(make_request(name, 8, max_tokens=9))
    harness.thread.start()
    harness.join()
    assert harness.ends() == dict.fromkeys(names, "error")
    assert all("bookkeeping is lost" in (e.error or "") for e in harness.events if e.finish_reason)
    assert isinstance(harness.failure, OSError)
    with pytest.raises(EngineDead, match="bookkeeping is lost"):
        harness.core.submit(make_request("late"))


def test_a_request_cancelled_in_the_step_that_dies_ends_too(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    break_after(harness, 0, monkeypatch)
    for name in ("cancelled", "other"):
        harness.core.submit(make_request(name))
    harness.core.cancel("cancelled")
    harness.thread.start()
    harness.join()
    assert harness.ends().keys() == {"cancelled", "other"}


def test_a_dead_engine_holds_no_blocks(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    break_after(harness, 2, monkeypatch)
    harness.core.submit(make_request("a", max_tokens=9))
    harness.thread.start()
    harness.join()
    stats = harness.core.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def test_the_loop_dies_of_an_interrupt_in_the_model(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(plan: StepPlan) -> None:
        raise SystemExit("the process ends")

    monkeypatch.setattr(harness.model, "run", interrupted)
    harness.core.submit(make_request("a"))
    harness.thread.start()
    harness.join()
    assert harness.ends() == {"a": "error"}
    assert isinstance(harness.failure, SystemExit)


def test_while_a_batch_fills_the_engine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(max_num_seqs=3, batching_strategy="static", batch_wait_ms=150.0)
    harness = Harness(scheduler)
    plans: list[StepPlan] = []
    schedule = scheduler.schedule

    def recorded(now: float) -> StepPlan:
        plans.append(schedule(now))
        return plans[-1]

    monkeypatch.setattr(scheduler, "schedule", recorded)
    harness.thread.start()
    for name in "ab":
        harness.core.submit(make_request(name, 8, max_tokens=3, arrival=time.monotonic()))
    harness.wait_for_ends("a", "b")
    harness.core.close()
    harness.join()
    # It looked when each came, and when the wait was over.
    assert sum(not plan.scheduled for plan in plans) <= 4
    assert [len(plan.scheduled) for plan in plans if plan.scheduled] == [2, 2, 2]


def test_while_a_batch_fills_a_deadline_ends_its_request_on_time() -> None:
    harness = Harness(make_scheduler(max_num_seqs=3, batching_strategy="static", batch_wait_ms=TIMEOUT * 1e3))
    harness.thread.start()
    request = make_request("a", 8, arrival=time.monotonic(), options=RequestOptions(deadline_ms=100))
    harness.scheduler.policies.apply(request)
    harness.core.submit(request)
    harness.wait_for_ends("a")
    waited = time.monotonic() - request.arrival
    harness.core.close()
    harness.join()
    assert harness.ends() == {"a": "expired"}
    assert 0.1 <= waited < TIMEOUT / 2


@pytest.mark.parametrize("policy", ["sjf", "slo"])
def test_prompts_are_hashed_outside_the_lock_of_submit(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(scheduling_policy=policy)
    harness = Harness(scheduler)
    hashed, lookup = threading.Event(), scheduler.tables.prefixes.lookup

    def look_up(request: Request) -> list[int]:
        if len(request.block_hashes) == 0:
            # Another thread can submit meanwhile.
            other = threading.Thread(target=harness.core.submit, args=(make_request("b", 2),))
            other.start()
            other.join(TIMEOUT)
            assert not other.is_alive()
            monkeypatch.undo()
            hashed.set()
        return lookup(request)

    monkeypatch.setattr(scheduler.tables.prefixes, "lookup", look_up)
    harness.core.submit(make_request("a", 8))
    harness.thread.start()
    assert hashed.wait(TIMEOUT)
    harness.wait_for_ends("a", "b")
    harness.core.close()
    harness.join()
