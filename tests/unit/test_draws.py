"""The random numbers of a request are those of numpy's Philox generator, made in chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight import SamplingParams
from inflight.draws import Draws


def philox(seed: int, position: int) -> float:
    """The number for a position, made on its own."""
    return (int(np.random.Philox(key=seed, counter=position).random_raw()) >> 11) * 2.0**-53


@settings(deadline=None)
@given(seed=st.integers(0, 2**64 - 1), positions=st.lists(st.integers(0, 2**20) | st.integers(0, 200), max_size=20))
def test_the_number_depends_only_on_the_seed_and_the_position(seed: int, positions: list[int]) -> None:
    draws = Draws(SamplingParams(temperature=1.0), seed)
    assert [draws.at(position)[-1] for position in positions] == [philox(seed, position) for position in positions]


@pytest.mark.parametrize(
    ("given_params", "expected"),
    [
        ({}, (0.0, 0.0, 1.0, 0.0)),
        ({"temperature": 1e-6, "top_p": 0.5, "top_k": 3}, (0.0, 0.0, 1.0, 0.0)),
        ({"temperature": 2}, (2.0, 0.0, 1.0, 0.0)),
        ({"temperature": 10**400, "top_k": 10**30}, (1e9, 2.0**24, 1.0, 0.0)),
        ({"temperature": 0.5, "top_k": -1, "top_p": 1, "min_p": 1}, (0.5, 0.0, 1.0, 1.0)),
        ({"temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125}, (0.5, 7.0, 0.25, 0.125)),
    ],
    ids=str,
)
def test_the_parameters_are_numbers_that_the_sampler_can_use(
    given_params: dict[str, float], expected: tuple[float, ...]
) -> None:
    assert Draws(SamplingParams(**given_params), seed=1).at(5)[:-1] == expected
