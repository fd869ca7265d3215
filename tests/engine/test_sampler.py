"""The sampler draws tokens by their probabilities after top_k, top_p and min_p, with kernels and with torch."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inflight.model.cpu import kernel_sampler
from inflight.model.sampling import torch_sampler
from inflight.model.sampling.sampler import sample
from inflight.request import Request
from tests.engine.sampling_reference import asking, batch_of, batch_with, cut, middles, uniforms_of_seeds

pytestmark = pytest.mark.usefixtures("cpu_kernels")

WAYS = [pytest.param(kernel_sampler, id="kernels"), pytest.param(torch_sampler, id="torch")]
DRAWS = 4000
LOGITS = [2.0, -1.0, 0.5, 1.7, -3.0, 0.0, 2.4, -0.3, 1.1, -7.0, 0.9, 1.4]
SAME_EVERY_RUN = settings(derandomize=True, deadline=None, database=None, max_examples=100)
Logits: TypeAlias = Sequence[float] | torch.Tensor
MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda normal: normal / 2,
    "as a model's": lambda normal: normal * 3,
    "peaked": lambda normal: normal.sign() * normal.abs() ** 2.5,
    "with many ties": lambda normal: (normal * 3).round(),
    "equal": torch.zeros_like,
    "rising": lambda normal: normal.sort().values,
    "half impossible": lambda normal: torch.where(normal > 0, normal, -torch.inf),
}


def logits_like(kind: str, vocabulary: int, seed: int = 0) -> torch.Tensor:
    return MAKERS[kind](torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)))


def draw(way: ModuleType, logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    tokens, _ = way.sample(logits, batch_of(requests))
    return tokens


def draw_from(
    way: ModuleType, row: Sequence[float] | torch.Tensor, uniforms: Sequence[float], **params: float
) -> list[int]:
    """Draw once for each random number."""
    tokens, _ = way.sample(torch.as_tensor(row).expand(len(uniforms), -1), batch_with(uniforms, **params))
    return tokens


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
    {"min_p": 0.05, "temperature": 1.7},
    {"top_k": 8, "top_p": 0.8, "min_p": 0.1, "temperature": 1.3},
    {"top_k": 3, "top_p": 0.9},
    {"top_p": 0.9, "min_p": 0.3},
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("params", CUTS, ids=str)
def test_each_token_is_drawn_as_often_as_its_probability_says(way: ModuleType, params: dict[str, Any]) -> None:
    tokens = draw_from(way, LOGITS, uniforms_of_seeds(DRAWS), **params)
    assert far_off(tokens, cut(LOGITS, **params)) < 4


@pytest.mark.parametrize("params", [{}, {"top_k": 300}, {"top_p": 0.95}, {"min_p": 0.01}], ids=str)
def test_parts_of_a_large_vocabulary_are_drawn_as_often_as_their_probability_says(params: dict[str, Any]) -> None:
    logits = logits_like("as a model's", 20_000)
    tokens = draw_from(kernel_sampler, logits, uniforms_of_seeds(DRAWS), **params)
    # Twenty parts of tokens with consecutive ids.
    probabilities = cut(logits, **params).reshape(20, -1).sum(axis=1)
    assert far_off([token // 1000 for token in tokens], probabilities) < 4


def test_positions_of_one_request_are_drawn_independently() -> None:
    requests = [asking(seed=3, position=position) for position in range(1, 1501)]
    tokens = draw(kernel_sampler, torch.tensor([LOGITS]).expand(1500, -1), requests)
    probabilities = cut(LOGITS)
    assert far_off(tokens, probabilities) < 4
    # Successive tokens are independent, too.
    pairs = [a * len(LOGITS) + b for a, b in pairwise(tokens)]
    assert far_off(pairs, np.outer(probabilities, probabilities).ravel()) < 4


logits_with_ties = st.lists(st.integers(-80, 80).map(lambda step: step / 8), min_size=2, max_size=40)
limits = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.3, 1.0, 5.0, 1e9])},
    optional={
        "top_k": st.integers(1, 45),
        "top_p": st.floats(0.01, 0.999),
        "min_p": st.floats(0.0, 1.0),
    },
)


@pytest.mark.parametrize("way", WAYS)
@SAME_EVERY_RUN
@given(logits=logits_with_ties, limits=limits)
def test_the_kept_tokens_are_exactly_those_of_the_rule(
    way: ModuleType, logits: list[float], limits: dict[str, Any]
) -> None:
    left = cut(logits, **limits)
    # Near a limit, float32 may decide otherwise.
    for name, off in (("top_p", 1e-5), ("min_p", 1e-4)):
        if name in limits:
            for sign in (-1, 1):
                near = {**limits, name: limits[name] + sign * off}
                assume(np.array_equal(cut(logits, **near) > 0, left > 0))
    likely = np.flatnonzero(left > 1e-5)
    assert draw_from(way, logits, middles(left)[likely], **limits) == likely.tolist()
    assert left[draw_from(way, logits, [0.0, 1 - 2**-53], **limits)].all()


LIMITS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "min_p": 0.02},
    {"top_k": 50},
    {"top_k": 5000},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"top_k": 200, "top_p": 0.9, "temperature": 1.5},
]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("vocabulary", [32, 1000, 49_152, 151_936, 256_000])
def test_kernels_draw_from_large_vocabularies_as_the_rule_says(vocabulary: int, kind: str) -> None:
    for seed, dtype in enumerate((torch.float32, torch.bfloat16)):
        row = logits_like(kind, vocabulary, seed).to(dtype)
        for params in LIMITS:
            left = cut(row.float(), **params)
            # Float32 sums to about 7 digits, so not every token of a large flat vocabulary has a middle of its own.
            likely = np.flatnonzero(left > 1e-4) if (left > 1e-4).any() else np.flatnonzero(left > 0)
            some = likely[:: max(1, len(likely) // 20)]
            found = np.array(draw_from(kernel_sampler, row, middles(left)[some], **params))
            off = np.abs(np.searchsorted(np.flatnonzero(left), found) - np.searchsorted(np.flatnonzero(left), some))
            assert left[found].all(), (params, dtype)
            assert off.max() <= (0 if left[some].min() > 1e-4 else 2), (params, dtype)


@pytest.mark.parametrize("kind", MAKERS)
def test_kernels_and_torch_draw_the_same_tokens(kind: str) -> None:
    rows, same = 64, 0
    for number, params in enumerate(LIMITS):
        for vocabulary in (700, 20_000):
            logits = torch.stack([logits_like(kind, vocabulary, rows * number + seed) for seed in range(rows)])
            if number % 2:
                logits = logits.bfloat16()
            batch = batch_of([asking(seed, position=number + 1, **params) for seed in range(rows)])
            mine, theirs = (way.sample(logits, batch)[0] for way in (kernel_sampler, torch_sampler))
            same += sum(a == b for a, b in zip(mine, theirs, strict=True))
    assert same >= 0.999 * rows * 2 * len(LIMITS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", [{"top_k": 1}, {"top_p": 1e-300}, {"top_p": 5e-324}, {"min_p": 1.0}], ids=str)
def test_the_tightest_limits_leave_only_the_likeliest_token(way: ModuleType, limit: dict[str, float]) -> None:
    assert draw_from(way, LOGITS, uniforms_of_seeds(200), temperature=5.0, **limit) == [6] * 200


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("top_p", [0.99999999, 1 - 1e-12])
def test_a_top_p_just_under_1_leaves_what_top_k_leaves(way: ModuleType, top_p: float) -> None:
    for seed in range(60):
        row = logits_like("flat", 5000, seed).bfloat16()
        for top_k in (2, 5):
            uniforms = [0.01, 0.25, 0.5, 0.75, 0.99]
            with_both = draw_from(way, row, uniforms, top_k=top_k, top_p=top_p)
            assert with_both == draw_from(way, row, uniforms, top_k=top_k), seed


@pytest.mark.parametrize("way", WAYS)
def test_a_top_k_over_the_vocabulary_is_no_limit(way: ModuleType) -> None:
    row, uniforms = logits_like("flat", 5000), uniforms_of_seeds(200)
    expected = draw_from(way, row, uniforms, top_p=0.9)
    for top_k in (5000, 6000, 10**30):
        assert draw_from(way, row, uniforms, top_p=0.9, top_k=top_k) == expected


@pytest.mark.parametrize("way", WAYS)
def test_rounding_draws_no_token_that_is_next_to_impossible(way: ModuleType) -> None:
    for seed in range(100):
        row = 40 * logits_like("flat", 255, seed)
        (token,) = draw_from(way, row, [1 - 2**-53])
        assert cut(row)[token] > 1e-18, seed


@pytest.mark.parametrize("way", WAYS)
def test_no_token_is_added_once_top_p_is_exactly_reached(way: ModuleType) -> None:
    assert draw_from(way, torch.zeros(2), [0.0, 0.6, 0.99], top_p=0.5) == [0, 0, 0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vocabulary", [2, 100, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equally_likely_tokens_the_smaller_ids_are_kept(
    way: ModuleType, vocabulary: int, dtype: torch.dtype
) -> None:
    row = torch.zeros(vocabulary, dtype=dtype)
    ends = [0.0, 1 - 2**-53]
    assert draw_from(way, row, ends, top_k=2) == [0, 1]
    assert draw_from(way, row, ends, top_p=0.5) == [0, vocabulary // 2 - 1]
    row[vocabulary // 2] = 1  # The likeliest token, among equal ones.
    assert draw_from(way, row, ends, top_k=2) == [0, vocabulary // 2]


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_drawn_in_the_order_of_their_ids(way: ModuleType) -> None:
    row = torch.tensor([0.0, 5.0, 1.0, -2.0, 3.0])
    for params in ({}, {"top_k": 4}, {"top_p": 0.99}):
        tokens = draw_from(way, row, np.linspace(0, 1, 500, endpoint=False), **params)
        assert tokens == sorted(tokens)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [0, 0.0, 1e-320, 1e-9, 1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_temperatures_near_zero_are_greedy(way: ModuleType, temperature: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(50, 300, generator=generator) * 50).to(dtype)
    logits[torch.arange(50), torch.arange(50)] = 300  # The likeliest token is far ahead, also after rounding.
    requests = [asking(seed, temperature=temperature) for seed in range(50)]
    assert draw(way, logits, requests) == list(range(50))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, 15, 16, 160, 256, 257, 49_152])
def test_greedy_takes_the_first_of_the_largest_logits(way: ModuleType, vocabulary: int, dtype: torch.dtype) -> None:
    logits = torch.randn(6, vocabulary + 3, generator=torch.Generator().manual_seed(0)).to(dtype)[:, :vocabulary]
    logits[1], logits[2], logits[3, 0] = 2.0, -0.0, math.nan
    logits[2, vocabulary // 2 :] = 0.0
    logits[4, vocabulary // 2 :] = math.inf
    logits[5] = -math.inf
    tokens = draw(way, logits, [asking(temperature=0) for _ in range(6)])
    assert tokens == [int(logits[0].double().argmax()), 0, 0, -1, vocabulary // 2, -1]


@pytest.mark.parametrize("way", WAYS)
def test_at_the_highest_temperature_all_kept_tokens_are_equally_likely(way: ModuleType) -> None:
    tokens = draw_from(way, LOGITS, uniforms_of_seeds(DRAWS), temperature=1e300, top_k=6)
    assert far_off(tokens, (cut(LOGITS, top_k=6) > 0) / 6) < 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("params", CUTS, ids=str)
def test_one_huge_logit_is_always_drawn(way: ModuleType, params: dict[str, Any]) -> None:
    for huge in (1e4, 3e38, math.inf):
        row = torch.tensor([*LOGITS, huge, *LOGITS])
        assert draw_from(way, row, uniforms_of_seeds(20), **params) == [len(LOGITS)] * 20


@pytest.mark.parametrize("way", WAYS)
def test_half_precision_logits_are_drawn_from_in_full_precision(way: ModuleType) -> None:
    """In bfloat16, the cumulative probability of many equal tokens would stop increasing before it reaches 1."""
    tokens = draw_from(way, torch.zeros(2000, dtype=torch.bfloat16), uniforms_of_seeds(1000))
    assert far_off([token // 100 for token in tokens], np.full(20, 0.05)) < 4


def test_logits_in_float16_are_drawn_from_too() -> None:
    logits = torch.tensor([LOGITS]).expand(50, -1)
    requests = [asking(seed, top_p=0.9) for seed in range(50)]
    assert draw(kernel_sampler, logits.half(), requests) == draw(kernel_sampler, logits.half().float(), requests)


anything = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0, 0.5, 1.0, 2.0])},
    optional={
        "top_k": st.sampled_from([1, 3, 40, 10**30]),
        "top_p": st.sampled_from([0.3, 0.9]),
        "min_p": st.sampled_from([0.1, 0.5]),
        "repetition_penalty": st.sampled_from([0.8, 1.5]),
        "min_tokens": st.just(2),
        "logprobs": st.sampled_from([0, 3]),
    },
)


@pytest.mark.parametrize("way", WAYS)
@SAME_EVERY_RUN
@given(
    st.lists(anything, min_size=2, max_size=5), st.integers(0, 2**32 - 1), st.sampled_from([50, 2500]), st.booleans()
)
def test_the_token_of_a_row_does_not_depend_on_the_parameters_of_other_rows(
    way: ModuleType, params: list[dict[str, Any]], seed: int, vocabulary: int, half: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(params), vocabulary, generator=generator) * 2
    if half:
        logits = logits.bfloat16()
    requests = [asking(seed + i, position=3 + i, stop_token_ids=[2], **p) for i, p in enumerate(params)]
    each = [draw(way, logits[i : i + 1], [request])[0] for i, request in enumerate(requests)]
    assert draw(way, logits, requests) == each


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("neighbour", [{"top_k": 2}, {"top_k": 900}, {"top_k": 1500}, {"top_p": 0.9}], ids=str)
def test_the_order_of_equally_likely_tokens_does_not_depend_on_other_rows(
    way: ModuleType, neighbour: dict[str, Any]
) -> None:
    """Logits in half precision are often equal."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(40, 2000, generator=generator) * 4).round().bfloat16()
    for row in range(0, 40, 2):
        request = asking(seed=row, top_k=60)
        (token,) = draw(way, logits[row : row + 1], [request])
        assert draw(way, logits[row : row + 2], [request, asking(**neighbour)])[0] == token


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.9}, {"top_k": 30}], ids=str)
def test_the_tokens_do_not_depend_on_the_number_of_threads(params: dict[str, Any]) -> None:
    logits = torch.stack([logits_like("as a model's", 3000, seed) for seed in range(33)])
    requests = [asking(seed, **params) for seed in range(33)]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(draw(kernel_sampler, logits, requests))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.9}, {"top_k": 3}], ids=str)
def test_rows_without_a_possible_token_or_with_nan_give_no_token_and_the_others_do(
    way: ModuleType, params: dict[str, Any]
) -> None:
    rows = [LOGITS, [-math.inf] * len(LOGITS), LOGITS, [*LOGITS[:-1], math.nan]]
    batch = batch_of([asking(seed=1, logprobs=2, **params) for _ in rows])
    for dtype in (torch.float32, torch.bfloat16):
        tokens, logprobs = way.sample(torch.tensor(rows, dtype=dtype), batch)
        assert tokens[0] == tokens[2] >= 0
        assert tokens[1] == tokens[3] == -1
        assert logprobs.keys() == {0, 2}


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.9}], ids=str)
def test_rows_need_not_be_next_to_each_other(params: dict[str, Any]) -> None:
    logits = torch.stack([logits_like("as a model's", 1000, seed) for seed in range(8)])
    requests = [asking(seed, **params) for seed in range(4)]
    assert draw(kernel_sampler, logits[::2, 3:700], requests) == draw(
        kernel_sampler, logits[::2, 3:700].contiguous(), requests
    )


def test_a_row_without_a_token_has_an_empty_result() -> None:
    batch = batch_of([asking(seed=1), asking(seed=1, logprobs=1)])
    nothing, something = sample(torch.tensor([[math.nan] * 4, [1.0, 2.0, 3.0, 4.0]]), batch)
    assert (nothing.token_ids, nothing.logprobs) == ((), ())
    assert len(something.token_ids) == len(something.logprobs) == 1
    assert sample(torch.zeros(0, 4), batch_of([])) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [3, 100, 49_152])
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_logprobs_agree_with_float64(way: ModuleType, dtype: torch.dtype, vocabulary: int, count: int) -> None:
    logits = torch.stack([logits_like(kind, vocabulary) for kind in MAKERS]).to(dtype)
    tokens, found = way.sample(logits, batch_with([0.1 * i for i in range(len(MAKERS))], logprobs=count))
    for row, token in enumerate(tokens):
        exact = logits[row].double().log_softmax(dim=-1).numpy()
        likeliest = np.argsort(-exact, kind="stable")[:count]
        likeliest = likeliest[exact[likeliest] > -np.inf]
        assert found[row].chosen == pytest.approx(exact[token], abs=1e-5)
        assert found[row].rank == 1 + (exact > exact[token]).sum()
        assert list(found[row].top) == likeliest.tolist()
        assert list(found[row].top.values()) == pytest.approx(exact[likeliest], abs=1e-5)
