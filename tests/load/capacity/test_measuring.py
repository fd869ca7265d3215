"""Levels of a sweep at which a server gives up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tqdm import tqdm

from inflight_client import MetricsSnapshot
from load_tests.capacity.level import ttft_p95
from load_tests.capacity.measuring import Measuring
from load_tests.capacity.result import USERS
from load_tests.capacity.search import search
from load_tests.failures import RequestFailed
from load_tests.prompts import PlannedRequest
from load_tests.workload import WORKLOADS, read_workload


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
            await asyncio.sleep(0.001)
            if self.broken:
                raise RequestFailed("ServerFault", "it is broken")
            yield request.output_tokens
        finally:
            self.num_running -= 1

    async def metrics(self) -> MetricsSnapshot:
        return MetricsSnapshot(())


def test_a_level_without_an_answer_breaks_the_objective() -> None:
    async def scenario() -> Any:
        server: Any = GivesUp()
        workload = read_workload(WORKLOADS / "small.yaml")
        measuring = Measuring(server, server, "llm", workload, USERS, 2, 8.0, tqdm(disable=True))
        await measuring.warm_up()
        return await search(measuring.level, lambda level: level.keeps(workload.slo), 1, whole=True)

    found = asyncio.run(scenario())
    assert found.capacity.load == 2
    assert found.broken.load > 2
    assert found.ended == "the objective was broken at 2 levels in a row"
    assert found.broken.middle(lambda repeat: repeat.failed) == 1
    assert not found.broken.middle(ttft_p95) < float("inf")
