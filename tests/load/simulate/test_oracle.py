"""Oracles use what they know of the future, and one that uses none of it changes nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.config import EngineConfig
from load_tests.arrivals import Gamma
from load_tests.lengths import Uniform
from load_tests.simulate.oracle import (
    KeepsBlocks,
    KeepsMore,
    Oracle,
    Stretches,
    StretchesInQuiet,
    WaitsForArrivals,
    YieldsToArrivals,
    simulate_with,
)
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import A100_LLAMA_8B
from load_tests.traffic import Arrival, Stream

ORACLES = [Oracle, WaitsForArrivals, KeepsBlocks, KeepsMore, YieldsToArrivals, StretchesInQuiet, Stretches]
WARM_UP = [Arrival(float(second), 64, 20, 20) for second in range(3)]
"""The step-time model knows the machine after these."""


def _config(**others: object) -> EngineConfig:
    base = {"model": "simulated", "kv_cache_tokens": 16_000, "max_queue_size": 1000, "enable_prefix_caching": False}
    return EngineConfig(**{**base, **others})  # type: ignore[arg-type]


def _serve(oracle: type[Oracle], arrivals: list[Arrival], **others: object) -> Result:
    return simulate_with(oracle, arrivals, _config(auto_tune="throughput", **others), A100_LLAMA_8B)


def _bursts(seed: int, rate: float = 8.0) -> list[Arrival]:
    return Stream(Gamma(rate, 3.0), Uniform(16, 1500), Uniform(1, 100), max_tokens=200).make(30, seed)


def test_without_knowledge_it_is_the_adaptive_budget() -> None:
    arrivals = _bursts(1)
    blind = _serve(Oracle, arrivals)
    plain = simulate(arrivals, _config(token_budget="adaptive"), A100_LLAMA_8B)
    assert np.array_equal(blind.first_token, plain.first_token)
    assert np.array_equal(blind.finish, plain.finish)


@pytest.mark.parametrize("oracle", ORACLES)
@given(seed=st.integers(0, 1000), rate=st.floats(0.5, 50), tokens=st.sampled_from([1800, 16_000]))
@settings(max_examples=3, deadline=None)
def test_every_request_is_answered(oracle: type[Oracle], seed: int, rate: float, tokens: int) -> None:
    result = _serve(oracle, _bursts(seed, rate), kv_cache_tokens=tokens)
    assert result.done.all()
    assert (result.arrival <= result.first_token).all()


def test_it_waits_for_a_request_that_comes_at_once() -> None:
    arrivals = [*WARM_UP, Arrival(5.0, 400, 1, 1), Arrival(5.001, 32, 1, 1)]
    blind, waiting = _serve(Oracle, arrivals), _serve(WaitsForArrivals, arrivals)
    assert waiting.steps == blind.steps - 1
    assert waiting.ttft[-1] < blind.ttft[-1]
    assert waiting.ttft[-2] == pytest.approx(blind.ttft[-2] + 0.001 + 32 * A100_LLAMA_8B.per_token)


def test_it_does_not_wait_for_a_request_that_comes_late() -> None:
    arrivals = [*WARM_UP, Arrival(5.0, 400, 1, 1), Arrival(5.04, 32, 1, 1)]
    assert np.array_equal(_serve(WaitsForArrivals, arrivals).finish, _serve(Oracle, arrivals).finish)


def test_a_step_ends_as_requests_come() -> None:
    running, prompt = Arrival(5.0, 16, 200, 200), Arrival(6.0, 150, 1, 1)
    arrivals = [*WARM_UP, running, prompt, *[Arrival(6.02, 32, 1, 1)] * 3]
    blind, yielding = _serve(Oracle, arrivals), _serve(YieldsToArrivals, arrivals)
    assert blind.first_token[4] < blind.first_token[5]
    # The rest of the prompt is in the step of those that came.
    assert yielding.first_token[4] == yielding.first_token[5]


def test_steps_are_long_only_while_no_request_comes() -> None:
    arrivals = [*WARM_UP, Arrival(5.0, 16, 200, 200), Arrival(6.0, 480, 1, 1)]
    blind, quiet, always = (_serve(each, arrivals).gaps.max() for each in (Oracle, StretchesInQuiet, Stretches))
    assert blind < quiet == always
    arrivals.append(Arrival(6.03, 32, 1, 1))
    quiet, always = (_serve(each, arrivals).gaps.max() for each in (StretchesInQuiet, Stretches))
    assert quiet < always


def test_blocks_kept_for_urgent_requests_spare_a_preemption() -> None:
    running, large = Arrival(5.0, 100, 100, 1800, priority=2), Arrival(5.5, 1500, 50, 300, priority=2)
    arrivals = [*WARM_UP, running, large, Arrival(5.8, 400, 10, 10, priority=1)]
    levels = {"scheduling_policy": "priority", "priority_levels": 2, "default_priority_level": 2}
    oracles = (Oracle, KeepsBlocks, KeepsMore)
    found = [_serve(each, arrivals, **levels, kv_cache_tokens=2000).preemptions.sum() for each in oracles]
    assert found == [1, 0, 1]


def test_it_needs_an_objective_without_targets() -> None:
    with pytest.raises(ValueError, match="auto_tune is ''; with an oracle it must be 'throughput'"):
        simulate_with(Oracle, WARM_UP, _config(), A100_LLAMA_8B)
