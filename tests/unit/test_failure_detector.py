"""When a silent server is probed, and when it is given up. `tests/client/test_severed_link.py` has real links."""

import asyncio
import math
import threading
import time
from collections.abc import Callable

import pytest

from inflight_client.transport.async_failure_detector import AsyncFailureDetector
from inflight_client.transport.failure_detector import FailureDetector
from inflight_client.transport.silence import Silence, Step
from tests.eventually import eventually

SECONDS = 0.16


def test_a_silent_server_is_probed_after_a_quarter_of_the_time_and_once_more() -> None:
    silence = Silence(16)
    assert silence.tick_seconds == 1
    for _ in range(2):
        steps = {number: silence.tick() for number in range(1, 17)}
        found = {number: step for number, step in steps.items() if step is not Step.WAIT}
        assert found == {4: Step.PROBE, 10: Step.PROBE, 16: Step.GIVE_UP}


@pytest.mark.parametrize("ticks", range(16))
def test_whatever_comes_ends_the_silence(ticks: int) -> None:
    silence = Silence(16)
    for _ in range(ticks):
        silence.tick()
    assert silence.is_probed == (ticks >= 4)
    silence.heard()
    assert silence.tick() is Step.WAIT
    assert not silence.is_probed
    assert [silence.tick() for _ in range(4)] == [Step.WAIT] * 3 + [Step.PROBE]


class Server:
    """A server that answers probes or does not, and the detector that watches it."""

    def __init__(self, answers: bool, seconds: float = SECONDS) -> None:
        self.answers = answers
        self.num_probes = self.num_cancelled = self.num_given_up = 0
        self.detector = FailureDetector(seconds, self.probe, self.give_up)

    def probe(self) -> "Server":
        self.num_probes += 1
        if self.answers:
            self.detector.heard()
        return self

    def cancel(self) -> None:
        self.num_cancelled += 1

    def give_up(self) -> None:
        self.num_given_up += 1


def has_thread() -> bool:
    return any("failure-detector" in thread.name for thread in threading.enumerate())


def test_a_server_that_answers_is_probed_as_long_as_requests_run() -> None:
    server = Server(answers=True)
    with server.detector.watching(), server.detector.watching():
        assert eventually(lambda: server.num_probes > 4)
    assert eventually(lambda: not has_thread())
    assert server.num_given_up == 0
    assert server.num_cancelled == server.num_probes
    server.detector.close()


def test_a_server_that_does_not_answer_is_given_up_also_if_its_request_has_ended() -> None:
    server = Server(answers=False, seconds=1.6)
    with server.detector.watching():
        assert eventually(lambda: server.num_probes >= 1)
    assert eventually(lambda: not has_thread())
    assert (server.num_probes, server.num_given_up, server.num_cancelled) == (2, 1, 2)
    with server.detector.watching():
        assert eventually(lambda: server.num_given_up == 2)
    server.detector.close()


def test_close_ends_the_thread_at_once() -> None:
    server = Server(answers=False, seconds=400)
    with server.detector.watching():
        assert has_thread()
        server.detector.close()
        assert not has_thread()
        with server.detector.watching():
            assert not has_thread()


def test_nobody_watches_without_a_bound() -> None:
    server = Server(answers=False, seconds=math.inf)
    with server.detector.watching():
        assert not has_thread()
    server.detector.close()


class AsyncServer:
    """See `Server`. A probe is answered after some turns of the event loop."""

    def __init__(self, turns: int | None, seconds: float = SECONDS) -> None:
        self.turns = turns
        self.num_probes = self.num_running = self.num_given_up = 0
        self.detector = AsyncFailureDetector(seconds, self.probe, self.give_up)

    async def probe(self) -> None:
        self.num_probes += 1
        self.num_running += 1
        try:
            if self.turns is None:
                await asyncio.Event().wait()
            for _ in range(self.turns or 0):
                await asyncio.sleep(0)
            self.detector.heard()
        finally:
            self.num_running -= 1

    async def give_up(self) -> None:
        self.num_given_up += 1


async def become(condition: Callable[[], bool]) -> bool:
    """`eventually`, for a loop that goes on meanwhile."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return condition()


async def is_alone() -> bool:
    return await become(lambda: len(asyncio.all_tasks()) == 1)


def test_a_server_that_answers_is_probed_by_a_task() -> None:
    async def scenario() -> None:
        server = AsyncServer(turns=3)
        with server.detector.watching(), server.detector.watching():
            assert await become(lambda: server.num_probes > 4)
        assert await is_alone()
        assert server.num_given_up == 0
        await server.detector.close()

    asyncio.run(scenario())


def test_a_server_that_does_not_answer_is_given_up_by_a_task() -> None:
    async def scenario() -> None:
        server = AsyncServer(turns=None, seconds=1.6)
        with server.detector.watching():
            assert await become(lambda: server.num_probes >= 1)
        assert await is_alone()
        assert (server.num_probes, server.num_given_up, server.num_running) == (2, 1, 0)
        with server.detector.watching():
            assert await become(lambda: server.num_given_up == 2)
            assert await become(lambda: server.num_running == 1)
            await server.detector.close()
            assert len(asyncio.all_tasks()) == 1
            assert server.num_running == 0

    asyncio.run(scenario())


def test_no_task_watches_without_a_bound_or_after_close() -> None:
    async def scenario() -> None:
        for seconds in (math.inf, SECONDS):
            server = AsyncServer(turns=None, seconds=seconds)
            if seconds is SECONDS:
                await server.detector.close()
            with server.detector.watching():
                assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_an_event_loop_that_other_tasks_hold_up_has_time_to_read_the_answer() -> None:
    """Each turn of the loop takes longer than a tick, and an answer takes many turns."""

    async def scenario() -> None:
        server, ended = AsyncServer(turns=20), asyncio.Event()

        async def hold_up() -> None:
            while not ended.is_set():
                time.sleep(0.02)
                await asyncio.sleep(0)

        holding = asyncio.create_task(hold_up())
        with server.detector.watching():
            while server.num_probes < 4:
                await asyncio.sleep(0.1)
        ended.set()
        await holding
        assert server.num_given_up == 0
        await server.detector.close()

    asyncio.run(scenario())
