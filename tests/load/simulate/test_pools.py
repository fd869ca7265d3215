"""Engines that share a load lose no request, and what is sent between them takes its time once."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.config import EngineConfig
from load_tests.simulate.pools import Network, simulate_apart, simulate_together
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Arrival

COST = StepCost(per_step=1e-3, per_token=1e-4, per_cached_token=1e-7)
CONFIG = EngineConfig(
    model="simulated", kv_cache_tokens=512, max_num_seqs=8, max_num_batched_tokens=32, enable_prefix_caching=False
)
AT_ONCE = Network(bytes_per_second=float("inf"))
PER_TOKEN = Network(bytes_per_second=1.0, kv_bytes_per_token=0.01)
"""A hundredth of a second for each token."""

ARRIVALS = st.lists(
    st.builds(
        lambda at, prompt, output: Arrival(at, prompt, output, output),
        st.floats(0, 0.2),
        st.integers(1, 60),
        st.integers(1, 20),
    ),
    min_size=1,
    max_size=20,
).map(lambda arrivals: sorted(arrivals, key=lambda arrival: arrival.at))
SIZES = st.integers(1, 3)


def check(arrivals: Sequence[Arrival], result: Result) -> None:
    """Assert that every request got its tokens, in order."""
    assert result.done.all()
    assert result.gap_counts.sum() == sum(arrival.output_tokens - 1 for arrival in arrivals)
    assert (result.arrival < result.first_token).all()
    assert (result.first_token <= result.finish).all()
    assert ((result.first_token == result.finish) == (result.output == 1)).all()


@settings(deadline=None, max_examples=60)
@given(
    ARRIVALS, st.integers(1, 3), st.integers(1, 3), st.sampled_from([AT_ONCE, PER_TOKEN]), st.sampled_from([96, 512])
)
def test_every_request_gets_its_tokens(
    arrivals: list[Arrival], prefill: int, decode: int, network: Network, tokens: int
) -> None:
    # In a cache of 96 tokens requests are preempted, also after they were sent.
    config = replace(CONFIG, kv_cache_tokens=tokens)
    check(arrivals, simulate_apart(arrivals, config, COST, network, prefill=prefill, decode=decode))
    check(arrivals, simulate_together(arrivals, config, COST, prefill))


def test_a_pool_of_one_is_the_simulator(arrivals: list[Arrival], config: EngineConfig, cost: StepCost) -> None:
    one, pool = simulate(arrivals, config, cost), simulate_together(arrivals, config, cost, 1)
    assert np.array_equal(one.first_token, pool.first_token)
    assert np.array_equal(one.finish, pool.finish)
    assert np.array_equal(one.gaps, pool.gaps)
    assert (one.steps, one.step_seconds) == (pool.steps, pool.step_seconds)


def test_where_sending_takes_no_time_a_request_alone_does_not_notice() -> None:
    arrivals = [Arrival(5.0, 20, 7, 7)]
    one = simulate(arrivals, CONFIG, COST)
    apart = simulate_apart(arrivals, CONFIG, COST, AT_ONCE, prefill=1, decode=1)
    assert (apart.first_token, apart.finish) == (one.first_token, one.finish)


def test_sending_delays_the_second_token_once() -> None:
    arrivals = [Arrival(0.0, 20, 7, 7)]
    fast, slow = (simulate_apart(arrivals, CONFIG, COST, each, prefill=1, decode=1) for each in (AT_ONCE, PER_TOKEN))
    assert slow.first_token == fast.first_token
    assert slow.finish[0] - fast.finish[0] == pytest.approx(20 * 0.01)
    assert slow.gaps[0] - fast.gaps[0] == pytest.approx(20 * 0.01)
    assert slow.step_seconds == pytest.approx(fast.step_seconds)


@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), (2, 1)])
def test_a_connection_sends_one_prompt_after_the_other(prefill: int, decode: int) -> None:
    arrivals = [Arrival(0.0, 10, 2, 2)] * 2
    result = simulate_apart(arrivals, CONFIG, COST, PER_TOKEN, prefill=prefill, decode=decode)
    assert np.diff(np.sort(result.finish)) == pytest.approx(10 * 0.01, rel=0.1)


def test_connections_of_other_engines_do_not_wait() -> None:
    arrivals = [Arrival(0.0, 10, 2, 2)] * 2
    result = simulate_apart(arrivals, CONFIG, COST, PER_TOKEN, prefill=2, decode=2)
    assert result.finish[0] == result.finish[1]


def test_a_request_keeps_its_level_where_it_goes_on() -> None:
    config = replace(CONFIG, max_num_seqs=1, priority_levels=2, default_priority_level=2)
    arrivals = [*[Arrival(0.0, 8, 20, 20)] * 4, Arrival(0.01, 8, 20, 20, priority=1)]
    result = simulate_apart(arrivals, config, COST, AT_ONCE, prefill=1, decode=1)
    # The first request runs when the urgent one comes, and the others wait.
    assert np.argsort(result.finish).tolist() == [0, 4, 1, 2, 3]


def test_a_wait_begins_anew_where_a_request_goes_on() -> None:
    # The fourth prompt is computed after 7.2 ms and sent at once.
    arrivals = [Arrival(0.0, 8, 2, 2)] * 4
    config = replace(CONFIG, max_num_seqs=1, default_timeout_microseconds=6_000)
    result = simulate_apart(arrivals, config, COST, AT_ONCE, prefill=1, decode=1)
    assert result.done.all()


def test_a_request_of_one_token_is_not_sent() -> None:
    never = Network(bytes_per_second=1e-9)
    result = simulate_apart([Arrival(0.0, 20, 1, 1)], CONFIG, COST, never, prefill=1, decode=1)
    assert result.finish[0] == pytest.approx(COST.per_step + 20 * COST.per_token)


def test_prompts_disturb_no_decodes_where_they_are_apart() -> None:
    arrivals = [Arrival(0.0, 4, 30, 30), *(Arrival(0.005 * i, 30, 1, 1) for i in range(1, 8))]
    together = simulate_together(arrivals, CONFIG, COST, 1)
    apart = simulate_apart(arrivals, CONFIG, COST, AT_ONCE, prefill=1, decode=1)
    alone = simulate_together(arrivals[:1], CONFIG, COST, 1)
    assert apart.finish[0] == alone.finish[0] < together.finish[0]


def test_requests_go_to_the_least_loaded_engine() -> None:
    # The first engine has one long prompt, so both short ones go to the second.
    arrivals = [Arrival(0.0, 32, 1, 1), Arrival(0.0, 4, 1, 1), Arrival(0.0, 4, 1, 1)]
    result = simulate_together(arrivals, CONFIG, COST, 2)
    assert result.finish == pytest.approx([0.001 + 32e-4, 0.001 + 8e-4, 0.001 + 8e-4])


def test_a_full_queue_refuses() -> None:
    config = replace(CONFIG, max_queue_size=2)
    result = simulate_together([Arrival(0.0, 8, 4, 4)] * 10, config, COST, 2)
    assert result.done.sum() == 4


def test_a_request_that_can_never_fit_is_named() -> None:
    arrivals = [Arrival(0.0, 500, 30, 30)]
    with pytest.raises(ValueError, match="kv_cache_tokens is 512"):
        simulate_together(arrivals, CONFIG, COST, 1)
    # The prompt alone fits into the prefill engine.
    with pytest.raises(ValueError, match="kv_cache_tokens is 512"):
        simulate_apart(arrivals, CONFIG, COST, AT_ONCE, prefill=1, decode=1)
