"""What a client allowed, less the time that has passed; and on whose account."""

import re
from typing import Any

import pytest

from inflight import InvalidRequest
from serving.limits import Limits, tenant


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


@pytest.mark.parametrize("name", ["a", "Käse & Co.", "ß" * 256, " "])
def test_a_tenant_has_a_name_of_up_to_256_characters(name: str) -> None:
    assert tenant("tenant", name) == tenant("tenant", name.encode()) == name


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ("", "tenant has 0 characters; it must have at least 1 and at most 256"),
        ("x" * 257, "tenant has 257 characters; it must have at least 1 and at most 256"),
        (b"\xff", "tenant is not valid UTF-8: byte 0 is 0xff"),
        ("a\ud800", "tenant is not valid Unicode: it holds half of a surrogate pair"),
        (5, "tenant is 5; it must be a text"),
        (["a", "b"], "tenant is ['a', 'b']; it must be a text"),
    ],
)
def test_what_is_no_name_of_a_tenant_is_refused(sent: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{re.escape(says)}$"):
        tenant("tenant", sent)
