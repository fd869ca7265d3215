"""What priorities, timeouts and deadlines mean for a request."""

from typing import Any

import pytest

from inflight import RequestOptions
from inflight.request import Request
from inflight.scheduler.queue_policy import QueuePolicies, QueuePolicy
from tests.unit.builders import make_request

LEVELS = QueuePolicies(priority_levels=3, default_priority_level=2)


def limited(policy: QueuePolicy, *, timeout: int = 0, deadline_ms: int | None = None) -> Request:
    """A request that arrived at 100 s, with its limits."""
    request = make_request("a", arrival=100.0)
    request.options = RequestOptions(timeout=timeout, deadline_ms=deadline_ms)
    QueuePolicies(policy).apply(request)
    return request


@pytest.mark.parametrize(("priority", "level"), [(0, 2), (1, 1), (2, 2), (3, 3), (4, 2), (2**31, 2)])
def test_a_priority_without_a_level_means_the_default_one(priority: int, level: int) -> None:
    request = make_request("a", options=RequestOptions(priority=priority))
    LEVELS.apply(request)
    assert request.priority == level


@pytest.mark.parametrize("priority", [0, 1, 7])
def test_without_levels_all_are_alike(priority: int) -> None:
    assert QueuePolicies().level(priority) == 0


def test_a_level_without_a_policy_has_the_default_one() -> None:
    default, own = QueuePolicy(default_timeout_microseconds=7), QueuePolicy(max_queue_size=3)
    policies = QueuePolicies(default, priority_levels=2, default_priority_level=1, by_level={2: own})
    assert policies.of(1) is default
    assert policies.of(2) is own


LIMITS: list[tuple[dict[str, Any], int, int | None, float | None, float | None]] = [
    ({}, 0, None, None, None),
    # A request's own timeout counts only where that is allowed, and never lengthens the wait.
    ({}, 2_000_000, None, None, None),
    ({"allow_timeout_override": True}, 2_000_000, None, 102.0, 102.0),
    ({"default_timeout_microseconds": 1_000_000}, 0, None, 101.0, None),
    ({"default_timeout_microseconds": 1_000_000}, 500_000, None, 101.0, None),
    ({"default_timeout_microseconds": 1_000_000, "allow_timeout_override": True}, 500_000, None, 100.5, 100.5),
    ({"default_timeout_microseconds": 1_000_000, "allow_timeout_override": True}, 5_000_000, None, 101.0, 105.0),
    # Where the action is DELAY a timeout ends nothing.
    ({"allow_timeout_override": True, "timeout_action": "DELAY"}, 2_000_000, None, 102.0, None),
    # A deadline always counts.
    ({}, 0, 250, None, 100.25),
    ({"allow_timeout_override": True, "timeout_action": "DELAY"}, 2_000_000, 250, 102.0, 100.25),
    ({"allow_timeout_override": True}, 100_000, 250, 100.1, 100.1),
    ({"allow_timeout_override": True}, 300_000, 250, 100.3, 100.25),
]


with_limits = pytest.mark.parametrize(("policy", "timeout", "deadline_ms", "wait_until", "deadline"), LIMITS)


@with_limits
def test_limits(
    policy: dict[str, Any],
    timeout: int,
    deadline_ms: int | None,
    wait_until: float | None,
    deadline: float | None,
) -> None:
    request = limited(QueuePolicy(**policy), timeout=timeout, deadline_ms=deadline_ms)
    assert (request.wait_until, request.deadline) == (wait_until, deadline)


@with_limits
def test_a_request_outside_the_queue_ends_when_it_would_end_there(
    policy: dict[str, Any],
    timeout: int,
    deadline_ms: int | None,
    wait_until: float | None,
    deadline: float | None,
) -> None:
    policies, options = QueuePolicies(QueuePolicy(**policy)), RequestOptions(timeout=timeout, deadline_ms=deadline_ms)
    for limit, reason in ((wait_until, "shed"), (deadline, "expired")):
        if limit is not None and policy.get("timeout_action") != "DELAY":
            assert policies.lateness(options, 100.0, limit - 0.01) != reason
            assert policies.lateness(options, 100.0, limit) in (reason, "expired")
    ends = deadline is not None or (wait_until is not None and policy.get("timeout_action") != "DELAY")
    assert (policies.lateness(options, 100.0, 1000.0) is not None) == ends
    if deadline is not None:
        assert policies.lateness(options, 100.0, 1000.0) == "expired"
