"""Two processes never have metrics with the same labels at once."""

import pytest

from serving.series_lock import SeriesLock


@pytest.mark.parametrize("model", ["llm", "Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "m" * 500])
def test_one_of_two_holds_it(model: str) -> None:
    labels = {"model": model, "version": "1", "instance": f"{model}_0_0"}
    first, second, other = SeriesLock(labels), SeriesLock(labels), SeriesLock({**labels, "version": "2"})
    try:
        assert first.acquire()
        assert first.acquire()
        assert not second.acquire()
        assert other.acquire()
        first.release()
        assert second.acquire()
    finally:
        for lock in (first, second, other):
            lock.release()
