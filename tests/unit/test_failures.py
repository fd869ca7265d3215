"""The code of an error tells a client whether to send the request elsewhere."""

import sys
from types import ModuleType
from typing import Any

import pytest

from inflight import EngineDead, InvalidRequest, QueueFull


class Sender:
    name = "a"

    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []

    def fail(self, message: str, code: str) -> None:
        self.failed.append((message, code))


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.failures import Failures

    return Failures()


@pytest.mark.parametrize(
    ("error", "expected", "reason"),
    [
        (InvalidRequest("bad"), ("bad", "INVALID_ARG"), "invalid"),
        (QueueFull("full"), ("full", "UNAVAILABLE"), "overload"),
        (EngineDead("dead"), ("dead", "UNAVAILABLE"), "error"),
        (OSError("disk"), ("OSError: disk", "INTERNAL"), "error"),
    ],
)
def test_refusals(failures: Any, error: Exception, expected: tuple[str, str], reason: str) -> None:
    sender = Sender()
    failures.refuse(sender, error)
    assert sender.failed == [expected]
    assert failures.refusals.counts()[reason] == 1
