"""What is learned of output lengths and step times, and the token budget that follows from it."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.scheduler.length_predictor import LengthPredictor
from inflight.scheduler.prefill_budget import AdaptiveBudget, FixedBudget
from inflight.scheduler.step_time import StepTimeModel
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
    predictor = LengthPredictor()
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
    predictor = LengthPredictor()
    finished(predictor, [100] * 50)
    finished(predictor, [5] * 9, tenant="terse")
    assert remaining(predictor, 0, 0.5, tenant="terse") == 100
    finished(predictor, [5], tenant="terse")
    assert remaining(predictor, 0, 0.5, tenant="terse") == 5
    assert remaining(predictor, 5, 0.5, tenant="terse") == 95, "none of its own was longer"
    assert remaining(predictor, 0, 0.5, tenant="new") == 100


def test_a_prediction_keeps_within_max_tokens_and_is_never_nothing() -> None:
    predictor = LengthPredictor()
    assert remaining(predictor, 3, 0.5, most=7) == 4
    finished(predictor, [50] * 20)
    assert remaining(predictor, 3, 0.5, most=7) == 4
    assert remaining(predictor, 7, 0.5, most=7) == 1


def test_memory_is_bounded_by_tenant_and_by_output() -> None:
    predictor = LengthPredictor()
    for number in range(3000):
        finished(predictor, [number], tenant=f"t{number}")
    assert len(predictor._by_tenant) == 1000
    assert len(predictor._all._newest) == len(predictor._all._sorted) == 500
    assert predictor._all._sorted == list(range(2500, 3000))


# -- step times --------------------------------------------------------------------------------------------------------


def observe(times: StepTimeModel, cost: tuple[float, float, float], steps: int, seed: int = 1) -> None:
    """Steps with decodes of long and short contexts and with prompts; their times are off by up to 2%."""
    draw, (a, b, c) = Random(seed), cost
    for _ in range(steps):
        tokens, cached = draw.choice([draw.randint(1, 64), draw.randint(64, 512)]), draw.randint(0, 20_000)
        times.observe(tokens, cached, (a + b * tokens + c * cached) * draw.uniform(0.98, 1.02))


COSTS = st.tuples(st.floats(1e-3, 2e-2), st.floats(1e-5, 1e-3), st.floats(1e-8, 1e-6))
CHANGES = st.tuples(*[st.floats(0.5, 2.0)] * 3)


@given(COSTS, CHANGES)
@settings(max_examples=15)
def test_predictions_come_near_and_follow_a_machine_that_changes(
    before: tuple[float, float, float], change: tuple[float, float, float]
) -> None:
    times, (a, b, c) = StepTimeModel(), before
    after = a * change[0], b * change[1], c * change[2]
    for (a, b, c), steps in ((before, 100), (after, 2000)):
        observe(times, (a, b, c), steps)
        for tokens, cached in ((1, 0), (64, 10_000), (512, 20_000)):
            real = a + b * tokens + c * cached
            # The noise of large steps is more than all of a small one.
            assert times.predict(tokens, cached) == pytest.approx(real, rel=0.05, abs=0.02 * (a + b * 512 + c * 20_000))


def test_coefficients_are_found_where_there_is_no_noise() -> None:
    times, draw = StepTimeModel(), Random(3)
    for _ in range(50):
        tokens, cached = draw.randint(1, 512), draw.randint(0, 20_000)
        times.observe(tokens, cached, 0.004 + 5e-5 * tokens + 2e-7 * cached)
    assert times.coefficients == pytest.approx((0.004, 5e-5, 2e-7), rel=1e-3)


def test_steps_that_are_all_alike_do_not_let_one_odd_step_turn_everything_over() -> None:
    times = StepTimeModel()
    observe(times, (0.004, 5e-5, 2e-7), 200)
    for _ in range(20_000):
        times.observe(8, 1000, 0.0046)
    times.observe(9, 1000, 0.1)  # 20 times as long as it should.
    assert times.predict(8, 1000) < 2 * 0.0046
    assert times.predict(512, 0) < 2 * 0.0296
    assert all(coefficient >= 0 for coefficient in times.coefficients)


def test_nothing_is_predicted_before_enough_was_seen() -> None:
    times = StepTimeModel()
    for _ in range(7):
        times.observe(10, 0, 0.01)
        assert (times.predict(10, 0), times.tokens_within(1.0, 0)) == (0.0, None)
    times.observe(20, 0, 0.02)
    assert times.predict(20, 0) > 0


# -- the budget --------------------------------------------------------------------------------------------------------


@given(
    st.tuples(st.floats(1e-4, 3e-2), st.floats(1e-6, 1e-3), st.floats(1e-9, 1e-6)),
    st.integers(1, 512),
    st.integers(0, 20_000),
    st.none() | st.floats(1e-3, 1.0),
    st.integers(0, 600),
)
def test_the_adaptive_budget_keeps_steps_within_the_target_and_prompts_going(
    cost: tuple[float, float, float], decodes: int, cached: int, target: float | None, waiting: int
) -> None:
    times = StepTimeModel()
    observe(times, cost, 100)
    relative = times.predict(decodes, cached) * (1 + max(0.75, 8 * waiting / decodes))
    budget = AdaptiveBudget(512, target, times).for_prompts(decodes, cached, waiting).tokens
    least = min(64 if target is None else 16, 512 - decodes)
    assert least <= budget <= 512 - decodes
    target = relative if target is None else target
    within = times.predict(decodes + budget, cached) <= target * (1 + 1e-9)
    assert within or budget == least
    if within and budget < 512 - decodes:
        assert times.predict(decodes + budget + 1, cached) > target * (1 - 1e-9), "there was more room"


def test_without_decodes_or_knowledge_the_fixed_budget_holds() -> None:
    times = StepTimeModel()
    budget = AdaptiveBudget(512, 0.001, times)
    assert budget.for_prompts(12, 0, 1) == FixedBudget(512).for_prompts(12, 0, 1)
    observe(times, (0.01, 1e-3, 1e-6), 100)
    assert budget.for_prompts(12, 0, 1).tokens == 16
    assert budget.for_prompts(0, 0, 1).tokens == 512
