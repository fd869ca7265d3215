"""What other programs do is logged, but cannot fill the log."""

import logging

import pytest

from inflight import rare_log
from inflight.rare_log import RareLog


def test_each_kind_is_logged_once_in_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 5.0
    monkeypatch.setattr(rare_log.time, "monotonic", lambda: now)
    log = RareLog(logging.getLogger("one"))
    for now, kind in ((5.0, "a"), (6.0, "b"), (14.9, "a"), (15.0, "a"), (15.5, "b"), (24.9, "a")):
        log.log(logging.WARNING, kind, "%s at %s", kind, now)
    assert caplog.messages == ["a at 5.0", "b at 6.0", "a at 15.0"]
    assert {record.name for record in caplog.records} == {"one"}
