"""The table of faults, and the promises that it checks."""

from dataclasses import replace

import pytest

from load_tests.chaos.experiment import Outcome
from load_tests.chaos.faults import FAULTS
from load_tests.chaos.report import broken_promises, late, table

DEATH = next(fault for fault in FAULTS if fault.name == "gateway killed")
CUT = next(fault for fault in FAULTS if fault.name == "connections cut")
KEPT = Outcome(
    failed=3,
    running=9,
    slowest_error=0.25,
    slowest_answer=1.75,
    wrong=0,
    hung=0,
    unhealthy=True,
    start=8.0,
    back=12.3,
    left=(),
)


def test_a_row_has_sums_of_requests_and_the_longest_times() -> None:
    other = replace(KEPT, failed=1, running=8, slowest_error=1.5, unhealthy=False, back=9.0, left=["tritonserver"])
    row = table({DEATH: [KEPT, other]}).splitlines()[-1]
    assert row == "| gateway killed | 2 | 4 of 17 | 1.5 | 1.8 | 0 | 0 | 1 times | 12.3 | 4.3 | tritonserver |"


def test_a_service_that_did_not_come_back_once_never_did() -> None:
    assert "| never |" in table({DEATH: [KEPT, replace(KEPT, back=None)]})


def test_kept_promises_give_no_line() -> None:
    assert broken_promises({DEATH: [KEPT, KEPT]}) == []
    assert late({DEATH: [KEPT, KEPT]}) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"wrong": 1}, "an answer was wrong"),
        ({"hung": 1}, "a request never ended"),
        ({"back": None}, "the service did not come back"),
        ({"unhealthy": False}, "health did not become false"),
        ({"left": ["a process"]}, "something was left behind"),
    ],
)
def test_each_broken_promise_has_a_line(changes: dict[str, object], line: str) -> None:
    outcomes = {DEATH: [KEPT, replace(KEPT, **changes)]}  # type: ignore[arg-type]
    assert broken_promises(outcomes) == [f"gateway killed: {line}"]
    assert late(outcomes) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"slowest_error": 5.1}, "an error took over 5 s"),
        ({"start": 7.2}, "the service came back later than 5 s after the time of a start"),
    ],
)
def test_what_is_late_has_a_line(changes: dict[str, float], line: str) -> None:
    outcomes = {DEATH: [KEPT, replace(KEPT, **changes)]}  # type: ignore[arg-type]
    assert late(outcomes) == [f"gateway killed: {line}"]
    assert broken_promises(outcomes) == []


def test_a_fault_that_kills_nothing_may_leave_the_service_healthy() -> None:
    assert broken_promises({CUT: [replace(KEPT, unhealthy=False, start=0.0)]}) == []
