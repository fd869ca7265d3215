"""Step times over several devices, on numbers that can be checked on paper."""

import pytest

from inflight.config import EngineConfig
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import A100_CACHE_TOKENS, Overlapped, StepCost
from load_tests.simulate.tensor_parallel import Interconnect, Shape, a100_cache_tokens, tensor_parallel
from load_tests.traffic import Arrival

COST = StepCost(8.0, 4.0, 2.0, per_pair=1.0, per_sampled_token=0.5, per_swapped_block=0.25)
SHAPE = Shape(layers=3, hidden_size=10, kv_heads=2)
AT_ONCE = Interconnect(latency=0.0, bytes_per_second=float("inf"))


def test_one_device_has_nothing_to_add_up() -> None:
    slow = Interconnect(latency=1.0, bytes_per_second=1.0)
    assert tensor_parallel(COST, 1, slow, SHAPE) == COST


def test_work_is_divided_but_each_kv_head_is_on_some_device() -> None:
    found = tensor_parallel(COST, 4, AT_ONCE, SHAPE)
    assert found == StepCost(2.0, 1.0, 1.0, per_pair=0.25, per_sampled_token=0.125, per_swapped_block=0.125)


def test_two_all_reduces_a_layer_are_paid() -> None:
    link = Interconnect(latency=0.1, bytes_per_second=100.0)
    found = tensor_parallel(COST, 4, link, SHAPE)
    # Six all-reduces. A token has 10 values of 2 bytes, of which a ring of 4 sends 2 * 3 / 4.
    assert found.per_step == pytest.approx(2.0 + 6 * 0.1)
    assert found.per_token == pytest.approx(1.0 + 6 * 1.5 * 20 / 100)


def test_more_devices_hold_more_keys_and_values() -> None:
    assert a100_cache_tokens(1) == A100_CACHE_TOKENS
    # Each further device has the room of the weights, 16.06 GB, in addition.
    assert a100_cache_tokens(2) - 2 * A100_CACHE_TOKENS == 16_060_000_000 // 131_072


@pytest.mark.parametrize(("per_token", "seconds"), [(0.1, 1.0), (0.5, 2.0)])
def test_where_reading_overlaps_with_computing_the_longer_one_counts(
    config: EngineConfig, per_token: float, seconds: float
) -> None:
    cost = Overlapped(per_step=1.0, per_token=per_token, per_cached_token=0.0)
    result = simulate([Arrival(0.0, 4, 1, 1)], config, cost)
    assert result.finish[0] == pytest.approx(seconds)
    assert 1 / cost.capacity(4, 4, 1) == pytest.approx(max(4.0, per_token * 8))
