"""The simulator against queueing theory: one slot, and requests of one step, so that no policy can interrupt one."""

from typing import Any

import numpy as np
import pytest

from inflight.config import EngineConfig
from load_tests.arrivals import Floats, Gamma
from load_tests.lengths import Uniform, fixed
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Arrival, Stream, merge

COST = StepCost(per_step=0.01, per_token=0.001, per_cached_token=0.0)
SHORT, LONG = Uniform(20, 100), Uniform(100, 400)
RATES = 3.0, 1.2
"""Short and long requests per second. They keep the machine busy for half of the time."""
LEVELS = {"priority_levels": 2, "default_priority_level": 2}
AGEING_SECONDS = 1.0


def arrivals(count: int, seed: int) -> list[Arrival]:
    """Short requests of level 1 and tenant a, and long ones of level 2 and tenant b, until either end."""
    streams = [
        Stream(Gamma(rate), lengths, fixed(1), tenants={tenant: 1.0}, priority=level).make(
            round(count * rate / sum(RATES)), (seed, level)
        )
        for rate, lengths, tenant, level in zip(RATES, (SHORT, LONG), "ab", (1, 2), strict=True)
    ]
    end = min(stream[-1].at for stream in streams)
    return [arrival for arrival in merge(*streams) if arrival.at <= end]


def served(requests: list[Arrival], **settings: Any) -> Result:
    base = {"max_num_seqs": 1, "max_queue_size": len(requests), "enable_prefix_caching": False}
    config = EngineConfig(model="simulated", kv_cache_tokens=100_000, **base, **settings)
    return simulate(requests, config, COST)


def service(result: Result) -> Floats:
    return COST.per_step + COST.per_token * result.prompt


def waits(result: Result) -> Floats:
    return result.ttft - service(result)


def test_waits_by_level_follow_cobham() -> None:
    """Cobham, 'Priority Assignment in Waiting Line Problems' (1954), with the rates and service times of this run."""
    result = served(arrivals(4000, seed=2), scheduling_policy="priority", priority_ageing_seconds=1e6, **LEVELS)
    level = np.array([arrival.priority for arrival in result.arrivals])
    seconds = result.arrival[-1]
    busy = [service(result)[level == each].sum() / seconds for each in (1, 2)]
    remaining = (service(result) ** 2).sum() / seconds / 2
    first = remaining / (1 - busy[0])
    found = [waits(result)[level == each].mean() for each in (1, 2)]
    assert found == pytest.approx([first, first / (1 - sum(busy))], rel=0.05)


@pytest.mark.parametrize("policy", ["priority", "sjf", "slo", "fair"])
def test_no_policy_changes_how_much_work_waits(policy: str) -> None:
    """Kleinrock's conservation law: one slot is never idle while somebody waits. So each sequence of arrivals has the
    same sum of service time times wait in every order."""
    requests = arrivals(600, seed=1)
    levels = LEVELS if policy == "priority" else {}
    fcfs, other = served(requests), served(requests, scheduling_policy=policy, **levels)
    assert not np.array_equal(fcfs.finish, other.finish)
    assert service(other) @ waits(other) == pytest.approx(service(fcfs) @ waits(fcfs))


def test_nobody_passes_a_request_that_came_an_ageing_time_before() -> None:
    result = served(
        arrivals(600, seed=1), scheduling_policy="priority", priority_ageing_seconds=AGEING_SECONDS, **LEVELS
    )
    start = result.arrival + waits(result)
    later = result.arrival[None, :] > result.arrival[:, None]
    passed = later & (start[None, :] < start[:, None])
    latest = (np.where(passed, result.arrival[None, :], result.arrival[:, None]) - result.arrival[:, None]).max()
    assert 0.8 * AGEING_SECONDS < latest <= AGEING_SECONDS
