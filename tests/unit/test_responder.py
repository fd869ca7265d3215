"""A fault in the response of one request ends that request alone."""

import queue
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Stream:
    """A request with one sample. It fails where it is told to."""

    has_output = wants_embedding = False

    def __init__(self, name: str, fails: str = "") -> None:
        self.name, self.samples = name, {name: None}
        self._fails = fails
        self.done: list[str] = []

    def add(self, delta: Any) -> None:
        self._do("add")

    def flush(self) -> bool:
        self._do("flush")
        return True

    def _do(self, what: str) -> None:
        if what == self._fails:
            raise ValueError(f"no {what}")
        self.done.append(what)


@pytest.mark.parametrize("fails", ["add", "flush"])
def test_a_fault_in_the_output_of_a_request_ends_no_other(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.responder import Responder
    from serving.streams import Streams

    broken, sound = Stream("broken", fails), Stream("sound")
    streams: Any = Streams()
    aborted: list[tuple[str, str, str]] = []

    def abort(stream: Stream, message: str, code: str) -> None:
        streams.drop(stream)
        aborted.append((stream.name, message, code))

    def process(events: list[str]) -> list[Any]:
        return [SimpleNamespace(request=SimpleNamespace(request_id=name), finish_reason=None) for name in events]

    events: Any = queue.Queue()
    for stream in (broken, sound):
        streams.add(stream)
    events.put(["broken", "sound"])
    events.put(None)
    engine: Any = SimpleNamespace(outputs=SimpleNamespace(process=process))
    aborter: Any = SimpleNamespace(abort=abort)
    Responder(engine, events, streams, aborter).run()
    assert aborted == [("broken", f"the response could not be sent: no {fails}", "INTERNAL")]
    assert sound.done == ["add", "flush"]
    assert not len(streams)
