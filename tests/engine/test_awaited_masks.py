"""A step that fails leaves no other thread at work with the grammars of its requests."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.errors import OutOfMemory
from inflight.model import runner
from inflight.model.runner import awaited
from inflight.scheduler.plan import StepPlan
from tests.engine.models import Tiny, drain, greedy, make_prompt


def test_a_failed_step_ends_when_its_masks_are_there() -> None:
    masks: Future[Any] = Future()
    failing = threading.Event()

    def make() -> None:
        failing.wait(60)
        masks.set_result(None)

    maker = threading.Thread(target=make)
    maker.start()

    def fail() -> None:
        failing.set()
        raise OutOfMemory("no memory")

    with pytest.raises(OutOfMemory), awaited(masks):
        fail()
    assert masks.done()
    maker.join()


def test_a_step_without_masks_waits_for_nothing() -> None:
    with pytest.raises(OutOfMemory), awaited(None):
        raise OutOfMemory("no memory")


def test_a_runner_out_of_memory_waits_for_the_masks(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny.engine()
    masks: Future[Any] = Future()
    failing = threading.Event()

    def make() -> None:
        failing.wait(60)
        masks.set_result(None)

    def compute_later(*args: Any) -> Any:
        if failing.is_set():
            return compute(*args)
        failing.set()
        raise MemoryError

    def run_and_look(plan: StepPlan) -> Any:
        try:
            return run(plan)
        finally:
            done.append(masks.done())

    done: list[bool] = []
    compute, run = runner.compute, engine._runner.run
    monkeypatch.setattr(runner, "compute", compute_later)
    monkeypatch.setattr(engine._runner, "run", run_and_look)
    monkeypatch.setattr(engine._runner, "masker", SimpleNamespace(begin=lambda _: masks))
    maker = threading.Thread(target=make)
    maker.start()
    engine.submit(make_prompt(9), greedy(3))
    drain(engine)
    maker.join()
    assert len(done) > 1
    assert all(done)
