import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from inflight import QueueFull
from inflight.tenant_turns import TenantTurns
from serving.long_prompts import LongPrompts


def test_tenants_take_turns() -> None:
    turns = TenantTurns[int]("numbers wait", most=3, most_in_all=5)
    for number in range(3):
        turns.add("much", number)
    turns.add("little", 10)
    with pytest.raises(QueueFull, match="Exceeds maximum queue size: 3 numbers wait"):
        turns.add("much", 3)
    turns.add("third", 20)
    with pytest.raises(QueueFull, match="Exceeds maximum queue size: 5 numbers wait"):
        turns.add("fourth", 30)
    order = []
    while turns:
        tenant, *_ = turns.tenants()
        order.append(turns.take(tenant))
    assert order == [0, 10, 20, 1, 2]


@pytest.fixture
def thread() -> Iterator[LongPrompts]:
    prompts = LongPrompts()
    prompts.start()
    yield prompts
    prompts.stop()
    prompts.join(10)
    assert not prompts.is_alive()


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_whoever_wastes_time_waits_and_others_do_not(thread: LongPrompts) -> None:
    done: list[tuple[str, float]] = []
    ended = threading.Event()

    def work(name: str, *, right: bool) -> bool:
        compute(0.02)
        done.append((name, time.monotonic()))
        if len(done) == 6:
            ended.set()
        return right

    for _ in range(3):
        thread.add("bad", lambda: work("bad", right=False))
        thread.add("good", lambda: work("good", right=True))
    assert ended.wait(30)
    assert [name for name, _ in done] == ["bad", "good", "good", "good", "bad", "bad"]
    bad = [at for name, at in done if name == "bad"]
    # Each turn took 20 ms, so the next one is at least 180 ms later.
    assert min(second - first for first, second in pairwise(bad)) > 0.18


def test_it_ends_with_all_work_done(thread: LongPrompts) -> None:
    done: list[int] = []
    for number in range(10):
        thread.add("", lambda number=number: done.append(number) is None)
    thread.stop()
    thread.join(10)
    assert done == list(range(10))
