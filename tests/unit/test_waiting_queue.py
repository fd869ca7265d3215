"""The order of those who wait, and what becomes of those who wait too long."""

import math

from hypothesis import given
from hypothesis import strategies as st

from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.queue_policy import QueuePolicies, QueuePolicy
from inflight.scheduler.timers import Timers
from inflight.scheduler.waiting_queue import WaitingQueue
from tests.unit.builders import make_request

# Level 1 rejects, level 2 delays.
POLICIES = QueuePolicies(priority_levels=2, default_priority_level=2, by_level={2: QueuePolicy(timeout_action="DELAY")})


class NaiveQueue:
    """What `WaitingQueue` should do, with lists for each level."""

    def __init__(self) -> None:
        self.levels: dict[int, tuple[list[Request], list[Request]]] = {1: ([], []), 2: ([], [])}
        """In time and delayed."""
        self.timers: dict[str, float] = {}

    def order(self) -> list[Request]:
        return [request for level in (1, 2) for requests in self.levels[level] for request in requests]

    def remove(self, request: Request) -> None:
        self.timers.pop(request.request_id, None)
        for requests in self.levels[request.priority]:
            if request in requests:
                requests.remove(request)

    def time_out(self, now: float) -> list[Request]:
        late = [r for r in self.order() if self.timers.get(r.request_id, now + 1) <= now]
        late.sort(key=lambda request: self.timers[request.request_id])
        for request in late:
            self.remove(request)
            if request.priority == 2:
                self.levels[2][1].append(request)
        return [request for request in late if request.priority == 1]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "pop", "pop and put back", "remove", "time out"]),
        st.integers(1, 2),
        st.integers(0, 30),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_the_queue_does_as_a_naive_one(operations: list[tuple[str, int, int]]) -> None:
    queue, naive, now = WaitingQueue(POLICIES), NaiveQueue(), 0.0
    for number, (operation, level, choice) in enumerate(operations):
        now += 1
        if operation == "add":
            request = make_request(f"{number}", 1, priority=level)
            if choice % 3:
                # No two at the same time: there the order would be that of arrival.
                request.wait_until = now + choice + number / 1000
                naive.timers[request.request_id] = request.wait_until
            queue.add(request)
            naive.levels[level][0].append(request)
        elif operation == "time out":
            assert [request for request, _ in queue.expire(now)] == naive.time_out(now)
        elif operation == "remove":
            waiting = naive.order()
            name = waiting[choice % len(waiting)].request_id if waiting else "nobody"
            removed = queue.remove(name)
            assert removed is (waiting[choice % len(waiting)] if waiting else None)
            if removed is not None:
                naive.remove(removed)
        else:
            first = queue.first()
            assert first is next(iter(naive.order()), None)
            if first is not None:
                assert queue.remove(first.request_id) is first
                naive.remove(first)
            if first is not None and operation == "pop and put back":
                queue.put_back(first)
                naive.levels[first.priority][0].insert(0, first)
        assert list(queue) == naive.order()
        assert len(queue) == len(naive.order())
        for level in (1, 2):
            assert queue.count(level) == sum(map(len, naive.levels[level]))


def test_what_was_put_back_times_out_no_more() -> None:
    queue, request = WaitingQueue(POLICIES), make_request("a", 1, priority=1)
    request.wait_until = 5.0
    queue.add(request)
    queue.remove("a")
    queue.put_back(request)
    assert queue.expire(10.0) == []
    assert list(queue) == [request]


def test_a_delayed_request_waits_behind_newcomers_too() -> None:
    queue = WaitingQueue(POLICIES)
    late = make_request("late", 1, priority=2)
    late.wait_until = 1.0
    queue.add(late)
    assert queue.expire(1.0) == []
    queue.add(make_request("new", 1, priority=2))
    assert [request.request_id for request in queue] == ["new", "late"]


def test_only_those_that_waited_too_long_count_as_delayed() -> None:
    queue = WaitingQueue(POLICIES)
    late, timely = make_request("late", 1, priority=2), make_request("timely", 1, priority=2)
    late.wait_until = 1.0
    for request in (late, timely):
        queue.add(request)
    queue.expire(1.0)
    assert (queue.is_delayed(late), queue.is_delayed(timely)) == (True, False)


def test_a_request_is_told_from_another_of_its_id() -> None:
    queue = WaitingQueue(POLICIES)
    gone, here = make_request("a", 1, priority=1), make_request("a", 1, priority=1)
    queue.add(gone)
    queue.remove("a")
    queue.add(here)
    assert (queue.has(gone), queue.has(here)) == (False, True)


def test_those_that_are_held_let_others_pass_and_get_their_places_back() -> None:
    queue = WaitingQueue(POLICIES)
    requests = [make_request(name, 2, priority=1) for name in "abc"]
    for request in requests:
        queue.add(request)
    queue.hold(requests[0])
    assert queue.first() is requests[1]
    assert queue.peek(5) == requests[1:]
    assert list(queue) == requests
    assert queue.num_tokens == 6


def test_timers_come_due_in_order_and_once() -> None:
    timers = Timers()
    for name, when in [("a", 3.0), ("b", 1.0), ("c", 1.0), ("gone", 0.5), ("d", 9.0)]:
        timers.set(make_request(name, 1), when)
    timers.clear("gone")
    timers.clear("never set")
    assert timers.next_due == 1.0
    assert timers.due(0.9) == []
    assert [request.request_id for request in timers.due(3.0)] == ["b", "c", "a"]
    assert timers.due(3.0) == []
    assert (len(timers), timers.next_due) == (1, 9.0)
    timers.clear("d")
    assert (len(timers), timers.next_due) == (0, math.inf)


def test_who_is_held_still_counts_as_waiting() -> None:
    """Other threads ask how many wait while the scheduler lets one pass another."""
    queue = WaitingQueue(POLICIES)
    for name in "ab":
        queue.add(make_request(name, 3, priority=1))
    first = queue.first()
    assert first is not None
    queue.hold(first)
    assert (len(queue), queue.count(1), queue.num_tokens) == (2, 2, 6)
    assert [request.request_id for request in queue] == ["b"]
    queue.release_held()
    assert [request.request_id for request in queue] == ["a", "b"]


def test_adapters_are_known_while_their_requests_wait() -> None:
    queue = WaitingQueue(POLICIES)
    for name, adapter in (("a", "poet"), ("b", "poet"), ("c", "cook"), ("d", "")):
        queue.add(make_request(name, 3, options=RequestOptions(lora_name=adapter)))
    assert {*queue.adapters()} == {"poet", "cook"}
    for name in "ac":
        queue.remove(name)
    assert queue.adapters() == ["poet"]
    queue.remove("b")
    assert queue.adapters() == []
