"""A step that fails leaves no other thread at work with the grammars of its requests."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from inflight.errors import OutOfMemory
from inflight.model.runner import awaited


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
