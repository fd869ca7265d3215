"""A request that is cancelled before the engine knows it stays cancelled."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stream of a request whose client stays connected. Triton's module exists only inside of Triton."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.parse import parse
    from serving.stream import ResponseStream

    request = SimpleNamespace(
        inputs=list, parameters=lambda: '{"text_input": "a", "n": 2, "temperature": 1}', timeout=int, request_id=str
    )
    sender: Any = SimpleNamespace(is_cancelled=lambda: False)
    form: Any = None
    return ResponseStream(sender, parse(request, 100, 1000), form, interval=1)


def test_a_request_that_the_engine_does_not_know_yet_stays_cancelled(stream: Any) -> None:
    from serving.aborter import Aborter

    asked: list[str] = []
    engine: Any = SimpleNamespace(cancel=asked.append)
    unused: Any = None
    assert not stream.is_cancelled()
    Aborter(engine, unused, unused).cancel(stream)
    assert stream.is_cancelled()
    assert asked == list(stream.samples)
