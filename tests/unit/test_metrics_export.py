"""Metrics that Triton must not be asked for."""

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from inflight.metric_families.family import COUNTER, GAUGE


class Metric:
    """A metric of Triton, which refuses what Triton would not survive."""

    def __init__(self, kind: str) -> None:
        self.kind, self.value = kind, 0.0

    def increment(self, by: float) -> None:
        assert by >= 0 or self.kind == GAUGE
        self.value += by


@pytest.fixture
def reading_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.metrics_export import _Reading

    return _Reading


@pytest.mark.parametrize(("kind", "shown"), [(COUNTER, [3, 5, 5, 5, 6]), (GAUGE, [3, 5, 4, 2, 6])])
def test_a_counter_never_falls(
    reading_class: Any, caplog: pytest.LogCaptureFixture, kind: str, shown: list[float]
) -> None:
    metric = Metric(kind)
    reading = reading_class("tokens", kind, lambda stats: {"": stats.number}, lambda _: metric)
    found = []
    with caplog.at_level(logging.ERROR):
        for number in (3, 5, 4, 2, 6):
            reading.update(SimpleNamespace(number=number))
            found.append(metric.value)
    assert found == shown
    assert [record.message for record in caplog.records] == (
        ["tokens fell from 5 to 4; it is not shown"] if kind == COUNTER else []
    )
