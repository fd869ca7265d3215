"""The phases of a request follow each other without gaps, whatever happened to it."""

from inflight.phases import phases
from inflight.request import Preemption, Request
from tests.unit.builders import make_request


def request(first_step: float | None, first_token: float | None, *preemptions: Preemption) -> Request:
    """A request that arrived at 1."""
    made = make_request("a", arrival=1.0)
    made.first_step_at, made.first_token_at = first_step, first_token
    made.preemptions = list(preemptions)
    return made


def test_a_request_that_ran_to_its_end() -> None:
    assert phases(request(2, 4), 9) == [("queued", 1, 2), ("prefill", 2, 4), ("decode", 4, 9)]


def test_requests_that_ended_early() -> None:
    assert phases(request(None, None), 3) == [("queued", 1, 3)]
    assert phases(request(2, None), 3) == [("queued", 1, 2), ("prefill", 2, 3)]


def test_preempted_requests() -> None:
    twice = request(2, 3, Preemption(4, 5, None), Preemption(6, 7, 8))
    assert phases(twice, 9) == [
        ("queued", 1, 2),
        ("prefill", 2, 3),
        ("decode", 3, 4),
        ("preempted", 4, 5),
        ("recompute", 5, 6),
        ("preempted", 6, 7),
        ("recompute", 7, 8),
        ("decode", 8, 9),
    ]
    in_its_prompt = request(2, 6, Preemption(3, 4, 6))
    assert [phase.name for phase in phases(in_its_prompt, 9)] == [
        "queued",
        "prefill",
        "preempted",
        "recompute",
        "decode",
    ]
    assert phases(request(2, 3, Preemption(4)), 6)[-1] == ("preempted", 4, 6)


def test_what_happened_after_the_end_does_not_count() -> None:
    assert phases(request(2, 3, Preemption(6, 7, 8)), 5) == [("queued", 1, 2), ("prefill", 2, 3), ("decode", 3, 5)]
