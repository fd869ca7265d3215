"""Finds the best settings for a workload."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from inflight.config import EngineConfig
from load_tests.simulate.acceptance import AcceptanceProfile
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import StepCost
from load_tests.slo import Slo
from load_tests.traffic import Arrival

GRID: Mapping[str, Sequence[Any]] = {
    "max_num_seqs": (32, 64, 128),
    "max_num_batched_tokens": (256, 512, 2048),
    "scheduling_policy": ("fcfs", "sjf", "slo"),
}


@dataclass(frozen=True)
class Candidate:
    """Settings and their result."""

    settings: Mapping[str, Any]
    result: Result

    @property
    def label(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


def sweep(
    arrivals: Sequence[Arrival],
    config: EngineConfig,
    cost: StepCost,
    slo: Slo,
    grid: Mapping[str, Sequence[Any]] = GRID,
    *,
    acceptance: AcceptanceProfile | None = None,
    progress: bool = False,
) -> list[Candidate]:
    """Simulate every combination of the grid's values, with a progress bar. The best candidate comes first.

    The best candidate has the highest goodput; ties go to the shortest mean time from arrival to last token.
    """
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    candidates = [
        Candidate(settings, simulate(arrivals, replace(config, **settings), cost, acceptance=acceptance))
        for settings in tqdm(combinations, unit="setting", disable=not progress)
    ]
    return sorted(candidates, key=lambda c: (-c.result.goodput(slo), _mean_time(c.result)))


def _mean_time(result: Result) -> float:
    return float(result.e2e.mean()) if result.done.any() else math.inf
