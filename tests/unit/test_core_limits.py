"""The engine's loop against time: timeouts, deadlines and bounds of the queue, on a clock that stands still."""

import pytest

from inflight import QueueFull
from inflight.core import EngineCore
from inflight.outputs import TokenEvent
from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.queue_policy import QueuePolicies, QueuePolicy
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_model import FakeModel, expected_output

HEEDED = QueuePolicy(allow_timeout_override=True)


class Timed:
    """A core whose clock is set by hand."""

    def __init__(self, default: QueuePolicy = HEEDED, *, max_num_seqs: int = 1, **levels: QueuePolicy) -> None:
        self.now = 0.0
        by_level = {int(name.removeprefix("level_")): policy for name, policy in levels.items()}
        count = max(by_level, default=0)
        self.policies = QueuePolicies(default, count, count, by_level)
        scheduler = make_scheduler(max_num_seqs=max_num_seqs, policies=self.policies)
        self.core = EngineCore(scheduler, FakeModel(4), max_queue_size=5, clock=lambda: self.now)

    def submit(
        self,
        name: str,
        *,
        max_tokens: int = 4,
        priority: int = 0,
        timeout: int = 0,
        deadline_ms: int | None = None,
    ) -> Request:
        options = RequestOptions(priority=priority, timeout=timeout, deadline_ms=deadline_ms)
        request = make_request(name, max_tokens=max_tokens, arrival=self.now, options=options)
        self.policies.apply(request)
        self.core.submit(request)
        return request

    def step(self, at: float | None = None) -> dict[str, TokenEvent]:
        """Step at a time; the last events of the requests that ended."""
        self.now = self.now if at is None else at
        return {e.request.request_id: e for e in self.core.step() if e.finish_reason is not None}

    def drain(self) -> list[str]:
        """Ids of the requests in the order in which they end."""
        ended: list[str] = []
        while self.core.has_work:
            ended += self.step()
        return ended


def test_a_deadline_while_running_ends_a_request_with_what_it_has() -> None:
    timed = Timed()
    request = timed.submit("a", max_tokens=9, deadline_ms=50)
    assert timed.step(0.0) == timed.step(0.049) == {}
    event = timed.step(0.050)["a"]
    assert (event.finish_reason, event.error, event.token_ids) == ("deadline", None, ())
    assert request.token_ids[4:] == expected_output(make_request("a", max_tokens=2))[0]
    assert not timed.core.has_work
    assert timed.core.stats().blocks_used == 0


def test_a_deadline_while_waiting_is_an_error_that_names_it() -> None:
    timed = Timed()
    timed.submit("runs", max_tokens=9)
    timed.submit("late", deadline_ms=50)
    assert timed.step(0.0) == {}
    event = timed.step(0.050)["late"]
    assert event.finish_reason == "expired"
    assert event.error == "deadline_ms is 50; it passed while the request waited"
    assert timed.drain() == ["runs"]


def test_a_timeout_while_waiting_is_an_error_that_names_it() -> None:
    timed = Timed()
    timed.submit("runs", max_tokens=9)
    timed.submit("late", timeout=50_000)
    timed.step(0.0)
    event = timed.step(0.050)["late"]
    assert event.finish_reason == "expired"
    assert event.error == "Request timeout expired: it waited longer than its timeout, 50000 us"


def test_the_default_timeout_bounds_the_wait_and_not_the_run() -> None:
    timed = Timed(QueuePolicy(default_timeout_microseconds=50_000))
    timed.submit("runs", max_tokens=3)
    timed.submit("late")
    assert timed.step(0.0) == {}
    late = timed.step(1.0)
    assert {name: event.finish_reason for name, event in late.items()} == {"late": "shed"}
    assert list(timed.step(2.0)) == ["runs"]


@pytest.mark.parametrize(
    ("timeout", "deadline_ms", "reason"),
    [(50_000, None, "expired"), (200_000, None, "shed"), (0, 50, "expired"), (0, 200, "shed")],
)
def test_a_request_expires_by_its_own_limits_and_is_shed_by_those_of_the_queue(
    timeout: int, deadline_ms: int | None, reason: str
) -> None:
    timed = Timed(QueuePolicy(default_timeout_microseconds=100_000, allow_timeout_override=True))
    timed.submit("runs", max_tokens=9)
    timed.submit("late", timeout=timeout, deadline_ms=deadline_ms)
    timed.step(0.0)
    assert timed.step(0.110)["late"].finish_reason == reason


def test_a_requests_own_timeout_bounds_its_run_too() -> None:
    timed = Timed()
    timed.submit("a", max_tokens=9, timeout=50_000)
    timed.step(0.0)
    assert timed.step(0.060)["a"].finish_reason == "deadline"


def test_a_delayed_request_lets_the_others_of_its_level_pass() -> None:
    timed = Timed(QueuePolicy(timeout_action="DELAY", allow_timeout_override=True))
    timed.submit("runs", max_tokens=3)
    timed.submit("late", timeout=50_000)
    timed.submit("in time")
    timed.step(0.0)
    timed.step(0.060)
    timed.submit("new")
    assert timed.drain() == ["runs", "in time", "new", "late"]


def test_a_request_that_was_preempted_ends_by_its_deadline_as_one_that_ran() -> None:
    timed = Timed(max_num_seqs=2)
    scheduler = make_scheduler(num_blocks=2, block_size=4, next_tokens=0, policies=timed.policies)
    timed.core = EngineCore(scheduler, FakeModel(4), max_queue_size=5, clock=lambda: timed.now)
    timed.submit("stays", max_tokens=5)
    timed.submit("goes", max_tokens=5, timeout=50_000)
    while not scheduler.preemptor.num_preemptions:
        timed.step()
    assert [request.request_id for request in scheduler.waiting] == ["goes"]
    assert timed.step(0.060)["goes"].finish_reason == "deadline"
    assert timed.drain() == ["stays"]


def test_a_request_that_arrives_late_never_runs() -> None:
    timed = Timed()
    timed.submit("a", deadline_ms=10)
    assert timed.step(0.010)["a"].finish_reason == "expired"
    assert timed.core.stats().steps == 0


def test_a_cancelled_request_ends_once_even_if_it_is_late() -> None:
    timed = Timed()
    for name in ("runs", "waits"):
        timed.submit(name, max_tokens=9, timeout=50_000, deadline_ms=50)
    timed.step(0.0)
    for name in ("runs", "waits"):
        timed.core.cancel(name)
    assert {name: event.finish_reason for name, event in timed.step(1.0).items()} == {
        "runs": "cancelled",
        "waits": "cancelled",
    }
    assert not timed.core.has_work


def test_an_id_is_free_again_when_its_request_has_expired() -> None:
    timed = Timed()
    timed.submit("a", deadline_ms=50)
    assert list(timed.step(1.0)) == ["a"]
    timed.submit("a", deadline_ms=50)
    assert timed.step(1.01) == {}


def test_a_level_that_is_full_refuses_and_says_which() -> None:
    timed = Timed(level_1=QueuePolicy(max_queue_size=2), level_2=QueuePolicy())
    timed.submit("runs", priority=2, max_tokens=9)
    timed.step()
    timed.submit("a", priority=1)
    assert timed.core.has_room(make_request("next", priority=1))
    timed.submit("b", priority=1)
    says = "Exceeds maximum queue size: 2 requests of priority 1 wait; max_queue_size of that level is 2"
    assert not timed.core.has_room(make_request("next", priority=1))
    with pytest.raises(QueueFull, match=says):
        timed.submit("c", priority=1)
    timed.step()  # They are in the scheduler's queue now, and count as before.
    with pytest.raises(QueueFull, match=says):
        timed.submit("c", priority=1)
    timed.submit("d", priority=2)
    timed.core.cancel("a")
    timed.step()
    timed.submit("c", priority=1)
    assert timed.drain() == ["runs", "b", "c", "d"]


def test_the_engines_bound_counts_all_levels_together() -> None:
    timed = Timed(level_1=QueuePolicy(), level_2=QueuePolicy())
    for number in range(5):
        timed.submit(f"{number}", priority=1 + number % 2)
    assert not timed.core.has_room(make_request("next", priority=1))
    with pytest.raises(QueueFull, match="5 requests wait; max_queue_size is 5"):
        timed.submit("more", priority=1)
