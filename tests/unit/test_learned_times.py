"""What is learned of output lengths and step times."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.scheduler.output_lengths.predictor import LengthPredictor
from inflight.scheduler.output_lengths.tenant_quantiles import TenantQuantiles
from inflight.scheduler.step_time import StepTimeModel, attention_pairs
from tests.unit.builders import make_request


def finished(predictor: LengthPredictor, lengths: list[int], tenant: str = "") -> None:
    for length in lengths:
        request = make_request("done", 1, max_tokens=10_000, tenant=tenant)
        request.token_ids += [0] * length
        predictor.observe(request)


def remaining(predictor: LengthPredictor, generated: int, quantile: float, tenant: str = "", most: int = 10_000) -> int:
    request = make_request("going", 1, max_tokens=most, tenant=tenant)
    request.token_ids += [0] * generated
    return predictor.remaining(request, quantile)


@given(
    st.lists(st.integers(1, 60), max_size=700), st.integers(0, 40), st.sampled_from([0.0, 0.25, 0.5, 0.8, 0.95, 1.0])
)
def test_predictions_are_the_quantiles_of_the_newest_longer_outputs(
    lengths: list[int], generated: int, quantile: float
) -> None:
    predictor = TenantQuantiles()
    finished(predictor, lengths)
    longer = [length for length in lengths[-500:] if length > generated]
    predicted = generated + remaining(predictor, generated, quantile)
    if len(longer) < 10:
        assert predicted == 10_000
    else:
        # Where the quantile lies between two lengths either will do.
        least, most = (
            np.quantile(longer, min(1.0, q), method="inverted_cdf") for q in (quantile, quantile + 1 / len(longer))
        )
        assert least <= predicted <= most


def test_a_tenant_is_predicted_by_its_own_outputs_once_there_are_enough() -> None:
    predictor = TenantQuantiles()
    finished(predictor, [100] * 50)
    finished(predictor, [5] * 9, tenant="terse")
    assert remaining(predictor, 0, 0.5, tenant="terse") == 100
    finished(predictor, [5], tenant="terse")
    assert remaining(predictor, 0, 0.5, tenant="terse") == 5
    assert remaining(predictor, 5, 0.5, tenant="terse") == 95, "none of its own was longer"
    assert remaining(predictor, 0, 0.5, tenant="new") == 100


def test_a_prediction_keeps_within_max_tokens_and_is_never_nothing() -> None:
    predictor = TenantQuantiles()
    assert remaining(predictor, 3, 0.5, most=7) == 4
    finished(predictor, [50] * 20)
    assert remaining(predictor, 3, 0.5, most=7) == 4
    assert remaining(predictor, 7, 0.5, most=7) == 1


def test_memory_is_bounded_by_tenant_and_by_output() -> None:
    predictor = TenantQuantiles()
    for number in range(3000):
        finished(predictor, [number], tenant=f"t{number}")
    assert len(predictor._by_tenant) == 1000
    assert len(predictor._all._newest) == len(predictor._all._sorted) == 500
    assert predictor._all._sorted == list(range(2500, 3000))


# -- step times --------------------------------------------------------------------------------------------------------

Cost = tuple[float, float, float, float]


def real_seconds(cost: Cost, tokens: int, cached: int, pairs: int) -> float:
    return sum(each * count for each, count in zip(cost, (1, tokens, cached, pairs), strict=True))


def observe(times: StepTimeModel, cost: Cost, steps: int, seed: int = 1, noise: float = 0.02) -> None:
    """Steps with decodes of long and short contexts and with chunks of prompts; their times are off by the noise."""
    draw = Random(seed)
    for _ in range(steps):
        decodes, cached = draw.randint(1, 64), draw.randint(0, 20_000)
        first, chunk = draw.randint(0, 2_000), draw.choice([0, draw.randint(1, 512)])
        first *= chunk > 0
        work = decodes + chunk, cached + first, cached + decodes + attention_pairs(first, chunk)
        times.observe(*work, real_seconds(cost, *work) * draw.uniform(1 - noise, 1 + noise))


COSTS = st.tuples(st.floats(1e-3, 2e-2), st.floats(1e-5, 1e-3), st.floats(1e-8, 1e-6), st.floats(1e-9, 1e-7))
CHANGES = st.tuples(*[st.floats(0.5, 2.0)] * 4)


@given(COSTS, CHANGES)
@settings(max_examples=15)
def test_predictions_come_near_and_follow_a_machine_that_changes(before: Cost, change: Cost) -> None:
    times, (a, b, c, d) = StepTimeModel(), before
    after = a * change[0], b * change[1], c * change[2], d * change[3]
    for cost, steps in ((before, 100), (after, 2000)):
        observe(times, cost, steps)
        # The noise of large steps is more than all of a small one.
        noise = 0.02 * real_seconds(cost, 576, 22_000, 1_100_000)
        for decodes, cached in ((1, 0), (64, 10_000)):
            real = real_seconds(cost, decodes, cached, cached + decodes)
            assert times.decode_seconds(decodes, cached) == pytest.approx(real, rel=0.05, abs=noise)
        for first, tokens in ((0, 512), (1500, 400)):
            real = real_seconds(cost, tokens, first, attention_pairs(first, tokens)) - cost[0]
            assert times.chunk_seconds(first, tokens) == pytest.approx(real, rel=0.05, abs=noise)
        assert times.prefill_seconds(512) == pytest.approx(times.coefficients[0] + times.chunk_seconds(0, 512))


@pytest.mark.parametrize(("first", "tokens"), [(0, 0), (0, 1), (0, 5), (7, 1), (7, 5)])
def test_every_token_attends_to_itself_and_to_all_before_it(first: int, tokens: int) -> None:
    assert attention_pairs(first, tokens) == sum(position + 1 for position in range(first, first + tokens))


def test_coefficients_are_found_where_there_is_no_noise() -> None:
    times, cost = StepTimeModel(), (0.004, 5e-5, 2e-7, 1e-8)
    observe(times, cost, 50, noise=0.0)
    assert times.coefficients == pytest.approx(cost, rel=1e-3)


def test_steps_that_are_all_alike_do_not_let_one_odd_step_turn_everything_over() -> None:
    times = StepTimeModel()
    observe(times, (0.004, 5e-5, 2e-7, 0.0), 200)
    for _ in range(20_000):
        times.observe(8, 1000, 1008, 0.0046)
    times.observe(9, 1000, 1009, 0.1)  # 20 times as long as it should.
    assert times.decode_seconds(8, 1000) < 2 * 0.0046
    assert times.prefill_seconds(512) < 2 * 0.0296
    assert all(coefficient >= 0 for coefficient in times.coefficients)


def test_a_machine_that_stood_still_says_nothing_of_the_next_steps() -> None:
    times, cost = StepTimeModel(), (0.004, 5e-5, 2e-7, 1e-8)
    observe(times, cost, 2000)
    times.observe(16, 4000, 4016, 30.0)
    decode = real_seconds(cost, 16, 4000, 4016)
    prefill = real_seconds(cost, 512, 0, attention_pairs(0, 512))
    assert times.decode_seconds(16, 4000) < 2 * decode
    assert times.prefill_seconds(512) < 2 * prefill
    observe(times, cost, 500)
    assert times.decode_seconds(16, 4000) == pytest.approx(decode, rel=0.25)
    assert times.prefill_seconds(512) == pytest.approx(prefill, rel=0.05)


def test_a_machine_whose_steps_all_become_that_long_is_followed() -> None:
    times, cost = StepTimeModel(), (0.004, 5e-5, 2e-7, 1e-8)
    observe(times, cost, 2000)
    after: Cost = (4.0, 5e-2, 2e-4, 1e-5)
    observe(times, after, 2000)
    real = real_seconds(after, 16, 4000, 4016)
    assert times.decode_seconds(16, 4000) == pytest.approx(real, rel=0.1)


@pytest.mark.parametrize("factor", [1.5, 0.6])
def test_a_machine_that_changes_is_followed_even_if_steps_hardly_vary(factor: float) -> None:
    """Sixteen decodes in each step hardly tell a step's own time from that of its tokens."""
    times, draw, before = StepTimeModel(), Random(0), (0.01, 1e-3, 1e-7, 1e-8)
    after: Cost = (factor * before[0], factor * before[1], factor * before[2], factor * before[3])
    observe(times, before, 50)
    cached, changed = 4000, 20_000
    for number in range(changed + 5_000):
        cached = 4000 if cached > 60_000 else cached + 16
        tokens, cost = 16 - (number % 400 == 0), before if number < changed else after
        pairs = cached + tokens
        times.observe(tokens, cached, pairs, real_seconds(cost, tokens, cached, pairs) * draw.uniform(0.98, 1.02))
        if number > changed + 1_500:
            for decodes, error in ((8, 0.3), (16, 0.1), (24, 0.3)):
                real = real_seconds(after, decodes, cached, cached + decodes)
                assert times.decode_seconds(decodes, cached) == pytest.approx(real, rel=error)


def test_nothing_is_predicted_before_enough_was_seen() -> None:
    times = StepTimeModel()
    for _ in range(7):
        times.observe(10, 0, 55, 0.01)
        assert (times.decode_seconds(10, 0), times.prefill_seconds(10), times.chunk_seconds(0, 10)) == (0.0, 0.0, 0.0)
        assert times.chunk_within(0, 1.0) == math.inf
    times.observe(20, 0, 210, 0.02)
    assert times.prefill_seconds(20) > 0


@given(COSTS, st.integers(0, 100_000), st.floats(0, 10))
def test_the_chunk_within_a_time_takes_that_time(cost: Cost, first: int, seconds: float) -> None:
    times = StepTimeModel()
    observe(times, cost, 50)
    _, b, c, d = times.coefficients
    tokens = times.chunk_within(first, seconds)
    assert tokens >= 0
    if tokens > 0:
        assert b * tokens + c * first + d * tokens * (first + (tokens + 1) / 2) == pytest.approx(seconds)
    else:
        assert c * first >= seconds


@pytest.mark.parametrize("first", [0, 5000])
def test_any_number_of_tokens_is_within_a_time_without_end(first: int) -> None:
    times = StepTimeModel()
    observe(times, (0.004, 5e-5, 2e-7, 1e-8), 50)
    assert times.chunk_within(first, math.inf) == math.inf


def test_where_tokens_take_no_time_any_number_is_within_it() -> None:
    times = StepTimeModel()
    for _ in range(20):
        times.observe(0, 0, 0, 0.01)
    assert times.chunk_within(0, 0.0) == math.inf
