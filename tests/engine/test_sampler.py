"""The sampler draws tokens by their probabilities after top_k, top_p and min_p."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.model.sampling.sampler import sample
from inflight.request import Request
from tests.engine.sampling_reference import asking, batch_of, cut, softmax

DRAWS = 4000
LOGITS = [2.0, -1.0, 0.5, 1.7, -3.0, 0.0, 2.4, -0.3, 1.1, -7.0, 0.9, 1.4]
SAME_EVERY_RUN = settings(derandomize=True, deadline=None, database=None, max_examples=100)


def draw(logits: torch.Tensor, requests: list[Request]) -> list[int]:
    return [result.token_ids[0] for result in sample(logits, batch_of(requests))]


def far_off(tokens: list[int], probabilities: np.ndarray) -> float:
    """The chi-square statistic of the tokens, as the number of standard deviations above its mean."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    assert not counts[probabilities == 0].any(), "an excluded token was drawn"
    possible = probabilities > 0
    expected = probabilities[possible] * len(tokens)
    freedom = possible.sum() - 1
    return float((((counts[possible] - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


CUTS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 4},
    {"top_k": 2, "temperature": 2.0},
    {"top_k": 10**30},
    {"top_p": 0.7},
    {"top_p": 0.95, "temperature": 1.5},
    {"min_p": 0.2},
    {"top_k": 8, "top_p": 0.8, "min_p": 0.1, "temperature": 1.3},
    {"top_k": 3, "top_p": 0.9},
]


@pytest.mark.parametrize("params", CUTS, ids=str)
def test_each_token_is_drawn_as_often_as_its_probability_says(params: dict[str, Any]) -> None:
    requests = [asking(seed, **params) for seed in range(DRAWS)]
    tokens = draw(torch.tensor([LOGITS]).expand(DRAWS, -1), requests)
    limits = {name: value for name, value in params.items() if name != "temperature"}
    assert far_off(tokens, cut(softmax(LOGITS, params.get("temperature", 1.0)), **limits)) < 4


def test_positions_of_one_request_are_drawn_independently() -> None:
    requests = [asking(seed=3, position=position) for position in range(1, 1501)]
    tokens = draw(torch.tensor([LOGITS]).expand(1500, -1), requests)
    probabilities = softmax(LOGITS)
    assert far_off(tokens, probabilities) < 4
    # Successive tokens are independent, too.
    pairs = [a * len(LOGITS) + b for a, b in pairwise(tokens)]
    assert far_off(pairs, np.outer(probabilities, probabilities).ravel()) < 4


def test_a_large_vocabulary_that_is_sorted_is_drawn_from_correctly() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3000, generator=generator) * 3
    for params in ({"top_k": 1500}, {"top_p": 0.6}, {"top_k": 1500, "top_p": 0.6}):
        left = cut(softmax(logits.tolist()), **params)
        tokens = draw(logits.expand(500, -1), [asking(seed, **params) for seed in range(500)])
        assert (left[tokens] > 0).all()
        likely = left > 0.004
        frequencies = np.bincount(tokens, minlength=3000)[likely] / 500
        assert np.abs(frequencies - left[likely]).max() < 0.06


distinct_logits = st.lists(st.integers(-80, 80), min_size=2, max_size=24, unique=True).map(
    lambda steps: [step / 10 for step in steps]
)
limits = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.one_of(st.integers(1, 30), st.sampled_from([-1, 0, 10**30])),
        "top_p": st.one_of(st.floats(1e-9, 1.0), st.sampled_from([5e-324, 1.0])),
        "min_p": st.floats(0.0, 1.0),
    },
)


@SAME_EVERY_RUN
@given(distinct_logits, limits, st.floats(0.1, 5.0))
def test_no_excluded_token_is_ever_drawn(logits: list[float], limits: dict[str, Any], temperature: float) -> None:
    requests = [asking(seed, temperature=temperature, **limits) for seed in range(60)]
    # The limits are slightly looser here, because the engine computes in float32.
    slack = dict(limits)
    if "top_p" in limits:
        slack["top_p"] = limits["top_p"] + 1e-6
    if "min_p" in limits:
        slack["min_p"] = limits["min_p"] - 1e-5
    left = cut(softmax(logits, temperature), **slack)
    assert (left[draw(torch.tensor([logits]).expand(60, -1), requests)] > 0).all()


@pytest.mark.parametrize("limit", [{"top_k": 1}, {"top_p": 1e-300}, {"top_p": 5e-324}, {"min_p": 1.0}], ids=str)
def test_the_tightest_limits_leave_only_the_likeliest_token(limit: dict[str, float]) -> None:
    requests = [asking(seed, temperature=5.0, **limit) for seed in range(200)]
    assert draw(torch.tensor([LOGITS]).expand(200, -1), requests) == [6] * 200


def test_no_token_is_added_once_top_p_is_exactly_reached() -> None:
    requests = [asking(seed, top_p=0.5) for seed in range(100)]
    assert len(set(draw(torch.zeros(100, 2), requests))) == 1


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-320, 1e-9, 1e-6, 1e-5, 1e-3])
def test_temperatures_near_zero_are_greedy(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(50, 300, generator=generator) * 50
    requests = [asking(seed, temperature=temperature) for seed in range(50)]
    assert draw(logits, requests) == logits.argmax(dim=-1).tolist()


def test_half_precision_logits_are_drawn_from_in_full_precision() -> None:
    """In bfloat16, the cumulative probability of many equal tokens would stop increasing before it reaches 1."""
    logits = torch.zeros(1, 2000, dtype=torch.bfloat16)
    tokens = draw(logits.expand(1000, -1), [asking(seed) for seed in range(1000)])
    assert far_off([token // 100 for token in tokens], np.full(20, 0.05)) < 4


anything = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0, 0.5, 1.0, 2.0])},
    optional={
        "top_k": st.sampled_from([1, 3, 40, 10**30]),
        "top_p": st.sampled_from([0.3, 0.9]),
        "min_p": st.sampled_from([0.1, 0.5]),
        "repetition_penalty": st.sampled_from([0.8, 1.5]),
        "min_tokens": st.just(2),
    },
)


@SAME_EVERY_RUN
@given(st.lists(anything, min_size=2, max_size=5), st.integers(0, 2**32 - 1), st.sampled_from([50, 2500]))
def test_the_token_of_a_row_does_not_depend_on_the_parameters_of_other_rows(
    params: list[dict[str, Any]], seed: int, vocabulary: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(params), vocabulary, generator=generator) * 2
    requests = [asking(seed + i, position=3 + i, stop_token_ids=[2], **p) for i, p in enumerate(params)]
    each = [draw(logits[i : i + 1], [request])[0] for i, request in enumerate(requests)]
    assert draw(logits, requests) == each


@pytest.mark.parametrize("neighbour", [{"top_k": 2}, {"top_k": 900}, {"top_k": 1500}, {"top_p": 0.9}], ids=str)
def test_the_order_of_equally_likely_tokens_does_not_depend_on_other_rows(neighbour: dict[str, Any]) -> None:
    """Logits in half precision are often equal."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(40, 2000, generator=generator) * 4).round().bfloat16()
    for row in range(0, 40, 2):
        request = asking(seed=row, top_k=60)
        (token,) = draw(logits[row : row + 1], [request])
        assert draw(logits[row : row + 2], [request, asking(**neighbour)])[0] == token


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_all_tokens_forbidden_gives_no_token_and_the_others_do(temperature: float) -> None:
    logits = torch.tensor([LOGITS, [-torch.inf] * len(LOGITS), LOGITS])
    batch = batch_of([asking(temperature=temperature, seed=1) for _ in range(3)])
    first, forbidden, last = sample(logits, batch)
    assert forbidden.token_ids == ()
    assert first.token_ids == last.token_ids != ()
