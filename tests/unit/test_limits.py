"""What a client allowed, less the time that has passed."""

import pytest

from serving.limits import Limits


@pytest.mark.parametrize(
    ("seconds", "timeout_us", "deadline_ms"),
    [(0.0, 300_000, 200), (0.1, 200_000, 100), (0.25, 50_000, 1), (9.0, 1, 1)],
)
def test_time_runs_down_but_never_out(seconds: float, timeout_us: int, deadline_ms: int) -> None:
    """A timeout of 0 would mean none, and a deadline of 0 is refused."""
    left = Limits(priority=3, timeout_us=300_000, deadline_ms=200).after(seconds)
    assert left == Limits(priority=3, timeout_us=timeout_us, deadline_ms=deadline_ms)


def test_no_limit_stays_none() -> None:
    assert Limits().after(100.0) == Limits()
