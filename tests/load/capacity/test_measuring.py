"""Levels of a sweep at which a server gives up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tqdm import tqdm

from inflight_client import MetricsSnapshot, TransportError
from inflight_client.metrics import parse_metrics
from load_tests.capacity.level import ttft_p95
from load_tests.capacity.measuring import Measuring, NothingMeasured
from load_tests.capacity.result import RATE, USERS, LoadKind
from load_tests.capacity.search import search
from load_tests.failures import RequestFailed
from load_tests.prompts import PlannedRequest
from load_tests.workload import WORKLOADS, read_workload
from tests.load.virtual_time import run_in_virtual_time

GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
COUNTERS = (
    *('computed_tokens_total{kind="prefill",', 'computed_tokens_total{kind="decode",'),
    *("generation_tokens_total{", "step_budget_tokens_total{", "padding_tokens_total{"),
    *("step_duration_seconds_count{", "iteration_requests_sum{", "num_preemptions_total{"),
)
METRICS = "".join(f'inflight:{name}model="llm"}} 0\n' for name in (*(f"{name}{{" for name in GAUGES), *COUNTERS))


class Notes:
    """A server that notes the prompts, and answers each after 20 ms."""

    name = "notes"

    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []

    async def ask(self, request: PlannedRequest, prompt: Sequence[int]) -> AsyncIterator[int]:
        self.prompts.append(tuple(prompt))
        await asyncio.sleep(0.02)
        yield request.output_tokens

    async def metrics(self) -> MetricsSnapshot:
        return MetricsSnapshot(())


def measuring(
    server: Any, *, kind: LoadKind = USERS, repeats: int = 2, seconds: float = 8.0, seed: int = 0
) -> Measuring:
    workload = read_workload(WORKLOADS / "small.yaml")
    return Measuring(server, server, "llm", workload, kind, repeats, seconds, seed, tqdm(disable=True))


class GivesUp:
    """A server that answers up to two requests at once. At more of them it refuses these and all later ones."""

    name = "gives up"

    def __init__(self) -> None:
        self.num_running = 0
        self.broken = False

    async def ask(self, request: PlannedRequest, prompt: Sequence[int]) -> AsyncIterator[int]:
        self.num_running += 1
        self.broken |= self.num_running > 2
        try:
            # Long enough that other work of the machine does not decide which load has more throughput.
            await asyncio.sleep(0.02)
            if self.broken:
                raise RequestFailed("ServerFault", "it is broken")
            yield request.output_tokens
        finally:
            self.num_running -= 1

    async def metrics(self) -> MetricsSnapshot:
        return MetricsSnapshot(())


def test_a_level_without_an_answer_breaks_the_objective() -> None:
    async def scenario() -> Any:
        sweep = measuring(GivesUp())
        await sweep.warm_up()
        return await search(sweep.level, lambda level: level.keeps(sweep.workload.slo), 1, whole=True)

    found = run_in_virtual_time(scenario())
    assert found.capacity.load == 2
    assert found.broken.load > 2
    assert found.ended == "the objective was broken at 2 levels in a row"
    assert found.broken.middle(lambda repeat: repeat.failed) == 1
    assert not found.broken.middle(ttft_p95) < float("inf")


def test_a_sweep_that_is_cancelled_keeps_the_levels_that_are_finished() -> None:
    server = Notes()

    async def scenario() -> Any:
        sweep = measuring(server)
        await sweep.warm_up()
        return await search(level_and_cancel(sweep), lambda level: level.keeps(sweep.workload.slo), 1, whole=True)

    def level_and_cancel(sweep: Measuring) -> Any:
        async def measure(load: float) -> Any:
            if load == 4:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            return await sweep.level(load)

        return measure

    found = run_in_virtual_time(scenario())
    assert [level.load for level in found.levels] == [1, 2]
    assert found.ended == "it was stopped"


def test_so_does_one_whose_metrics_fail() -> None:
    class Unreadable(Notes):
        async def metrics(self) -> MetricsSnapshot:
            if len(self.prompts) > 60:  # One user sends at most 33 in the warm-up and the first level.
                raise TransportError("no metrics")
            return parse_metrics(METRICS)

    async def scenario() -> Any:
        sweep = measuring(Unreadable(), repeats=1)
        await sweep.warm_up()
        return await search(sweep.level, lambda level: level.keeps(sweep.workload.slo), 1, whole=True)

    found = run_in_virtual_time(scenario())
    assert found.levels
    assert (found.interrupted, found.ended) == (True, "the server's metrics could not be read: no metrics")


def test_no_two_runs_of_a_sweep_send_the_same_prompt_nor_does_another_sweep() -> None:
    server = Notes()

    async def scenario(seed: int) -> None:
        sweep = measuring(server, seconds=4.0, seed=seed)
        await sweep.warm_up()
        for load in (1, 2):
            assert await sweep.level(load) is not None

    for seed in (0, 1, 1000):
        run_in_virtual_time(scenario(seed))
    assert len(set(server.prompts)) == len(server.prompts) > 10


def test_a_first_level_that_does_not_fit_into_the_time_is_said_to_need_more() -> None:
    async def scenario() -> None:
        sweep = measuring(Notes(), kind=RATE, repeats=3, seconds=4.0)
        await sweep.warm_up()
        await sweep.level(0.5)

    # Eight measured requests at a rate of 0.5 take 16 s after the warm-up: 22.9 s, and 6.9 s for the last answers.
    with pytest.raises(NothingMeasured, match=r"the first level, 0\.5 requests/s, needs 89 s for 3 repeats"):
        run_in_virtual_time(scenario())


def test_runs_last_for_several_answers_and_for_enough_requests() -> None:
    async def seconds_of(kind: LoadKind, seconds: float, *loads: float) -> float:
        """Length of a run at the last of these loads."""
        sweep = measuring(Notes(), kind=kind, repeats=1, seconds=seconds)
        await sweep.warm_up()
        for load in loads:
            level = await sweep.level(load)
            assert level is not None
        return level.repeats[0].end

    # Twelve levels, of which each waits for the last answers for three tenths of its run.
    assert run_in_virtual_time(seconds_of(USERS, 8.0, 1)) == pytest.approx(8 / 12 / 1.3)
    # Eight requests after the warm-up.
    assert run_in_virtual_time(seconds_of(RATE, 4.0, 16.0)) == pytest.approx(8 / 16 / 0.7)
    # Sixteen users may wait sixteen times as long as one, and three answers of so many times 20 ms take most of 1 s.
    assert run_in_virtual_time(seconds_of(USERS, 4.0, 1, 16)) >= 3 * 16 * 0.02
