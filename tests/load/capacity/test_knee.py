"""The knee of curves whose knee is known."""

import numpy as np
import pytest

from load_tests.capacity.knee import knee

LOADS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]


@pytest.mark.parametrize("slots", [4.0, 8.0, 16.0, 32.0, 64.0])
def test_the_knee_of_a_full_server_is_where_it_is_full(slots: float) -> None:
    assert knee(LOADS, [10 * min(load, slots) for load in LOADS]) == slots


@pytest.mark.parametrize("half", [8.0, 20.0, 40.0])
def test_the_knee_of_a_smooth_curve_is_the_level_next_to_where_it_is_as_steep_as_its_chord(half: float) -> None:
    def curve(load: float) -> float:
        return load / (load + half)

    slope = (curve(LOADS[-1]) - curve(LOADS[0])) / (LOADS[-1] - LOADS[0])
    exact = np.sqrt(half / slope) - half
    found = knee(LOADS, list(map(curve, LOADS)))
    assert found == min(LOADS, key=lambda load: abs(load - exact))


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_move_it_by_more_than_a_level(seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(0.95, 1.05, len(LOADS))
    found = knee(LOADS, [float(10 * min(load, 32) * factor) for load, factor in zip(LOADS, noise, strict=True)])
    assert found in (16.0, 32.0, 64.0)


def test_overload_that_costs_throughput_is_no_part_of_the_bend() -> None:
    assert knee(LOADS, [10, 20, 40, 80, 160, 155, 120, 60]) == 16


def test_no_knee_where_throughput_only_grows() -> None:
    assert knee(LOADS, LOADS) is None
    assert knee(LOADS, [load * (1.01 if load == 8 else 1) for load in LOADS]) is None


@pytest.mark.parametrize("throughputs", [[], [10.0], [10.0, 20.0]])
def test_no_knee_of_fewer_than_three_points(throughputs: list[float]) -> None:
    assert knee(LOADS[: len(throughputs)], throughputs) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("throughputs", [[0.0] * 8, [80.0, 79, 77, 70, 60, 50, 40, 30]], ids=["nothing", "falls"])
def test_no_knee_where_throughput_never_grows(throughputs: list[float]) -> None:
    assert knee(LOADS, throughputs) is None


@pytest.mark.parametrize("seed", range(20))
def test_no_knee_in_the_noise_of_a_server_that_is_full_from_the_start(seed: int) -> None:
    assert knee(LOADS, np.random.default_rng(seed).uniform(98, 102, len(LOADS)).tolist()) is None
