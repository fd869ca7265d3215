"""The engine's thread beside a responder that falls behind."""

import queue

import pytest

from inflight import EngineConfig
from inflight.outputs import TokenEvent
from serving import engine_thread
from tests.engine.models import Tiny, greedy, make_prompt
from tests.eventually import eventually


def test_the_engine_waits_for_a_responder_that_falls_behind(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the memory of undelivered tokens is bounded, however long the responder takes."""
    monkeypatch.setattr(engine_thread, "_MAX_STEPS_BEHIND", 4)
    config = EngineConfig(model=str(tiny.folder), dtype="float32", device="cpu", kv_cache_tokens=1024)
    thread = engine_thread.EngineThread(config)
    engine = thread.load()
    for number in range(8):
        engine.submit(make_prompt(5), greedy(20, ignore_eos=True), request_id=f"{number}")
    assert eventually(thread.events.full)
    # One more step may have run: its events wait for a place.
    assert eventually(lambda: engine.stats().steps == 5)
    assert not eventually(lambda: engine.stats().steps > 5, seconds=0.2)

    events: list[TokenEvent] = []
    while sum(event.finish_reason is not None for event in events) < 8:
        events += thread.events.get(timeout=10) or []
    assert sum(len(event.token_ids) for event in events) == 8 * 20
    engine.core.close()
    thread.join(10)
    with pytest.raises(queue.Empty):
        thread.events.get_nowait()
