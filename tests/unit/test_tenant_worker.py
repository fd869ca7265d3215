import os
import threading
import time
from collections.abc import Iterator

import pytest

from inflight import QueueFull
from inflight.tenant_turns import TenantTurns
from serving.tenant_worker import TenantWorker


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
def thread() -> Iterator[TenantWorker]:
    worker = TenantWorker("work", "pieces of work wait")
    worker.start()
    yield worker
    worker.stop()
    worker.join(10)
    assert not worker.is_alive()


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_whoever_wastes_time_waits_and_others_do_not(thread: TenantWorker) -> None:
    done: list[tuple[str, float]] = []
    ended = threading.Event()

    def waste() -> bool:
        compute(0.1)
        done.append(("bad", time.monotonic()))
        if len(done) == 5:
            ended.set()
        return False

    for _ in range(2):
        thread.add("bad", waste)
    for _ in range(3):
        thread.add("good", lambda: done.append(("good", time.monotonic())) is None)
    assert ended.wait(30)
    assert [name for name, _ in done] == ["bad", "good", "good", "good", "bad"]
    # The first turn took 100 ms, so the next one is at least 900 ms later.
    assert done[-1][1] - done[0][1] > 0.9


def test_it_ends_with_all_work_done(thread: TenantWorker) -> None:
    done: list[int] = []
    for number in range(10):
        thread.add("", lambda number=number: done.append(number) is None)
    thread.stop()
    thread.join(10)
    assert done == list(range(10))


def test_a_nice_thread_and_those_that_it_starts_leave_the_processors_to_others() -> None:
    worker = TenantWorker("work", "pieces of work wait", niceness=7)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[int] = []

    def work() -> bool:
        started = threading.Thread(
            target=lambda: seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        )
        started.start()
        started.join()
        return True

    worker.add("tenant", work)
    worker.stop()
    worker.start()
    worker.join(10)
    assert seen == [before + 7]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
