import pytest

from serving import refusal_rate
from serving.refusal_rate import RefusalRate


def test_a_burst_and_then_fifty_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(refusal_rate.time, "monotonic", lambda: now)
    rate = RefusalRate()
    assert sum(rate.take() for _ in range(300)) == 100
    now += 1.0
    assert sum(rate.take() for _ in range(300)) == 50
    now += 100.0
    assert sum(rate.take() for _ in range(300)) == 100
