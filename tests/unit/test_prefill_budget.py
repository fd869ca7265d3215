"""How much of a step prompts may take beside its decodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.scheduler.prefill_budget import AdaptiveBudget, Decodes, FixedBudget, PrefillAllowance, PrefillBudget
from inflight.scheduler.step_time import StepTimeModel
from tests.unit.test_learned_times import COSTS, Cost, observe

SLACK = 1 + 1e-9
CHUNKS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 700)), max_size=8)
"""The first position and the wanted number of tokens of some chunks."""
DECODES = st.builds(Decodes, st.integers(1, 64), st.integers(0, 60_000))


def learned(cost: Cost) -> StepTimeModel:
    times = StepTimeModel()
    observe(times, cost, 60)
    return times


def fill(allowance: PrefillAllowance, wanted: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Take what fits of some chunks, in their order. Return the chunks that were taken."""
    taken = []
    for first, tokens in wanted:
        fits = allowance.fits(first, tokens)
        assert 0 <= fits <= tokens
        if fits:
            allowance.take(first, fits)
            taken.append((first, fits))
    return taken


@given(COSTS, CHUNKS, st.integers(0, 512), st.floats(-0.1, 1.0), st.integers(0, 64))
def test_chunks_keep_within_the_tokens_and_the_time_and_leave_neither(
    cost: Cost, wanted: list[tuple[int, int]], tokens: int, seconds: float, least: int
) -> None:
    times = learned(cost)
    allowance = PrefillAllowance(tokens, seconds=seconds, times=times, least=least)
    used = spent = 0
    for first, want in wanted:
        fits = allowance.fits(first, want)
        after = spent + times.chunk_seconds(first, fits) if fits else spent
        assert used + fits <= tokens
        assert after <= max(0.0, seconds) * SLACK + 1e-12 or used + fits <= least
        if fits < min(want, tokens - used):
            assert used + fits >= min(least, tokens)
            assert spent + times.chunk_seconds(first, fits + 1) > seconds * (1 - 1e-9), "one more would have fitted"
        if fits:
            allowance.take(first, fits)
            used, spent = used + fits, after


@given(COSTS, CHUNKS, st.integers(0, 512), st.floats(0, 1.0))
def test_the_budget_that_is_reported_holds_what_was_taken(
    cost: Cost, wanted: list[tuple[int, int]], tokens: int, seconds: float
) -> None:
    allowance = PrefillAllowance(tokens, seconds=seconds, times=learned(cost))
    taken = sum(fits for _, fits in fill(allowance, wanted))
    budget = allowance.budget
    assert taken <= budget.tokens <= tokens
    assert (budget.tokens == tokens) == (budget.set_by == "max_num_batched_tokens")
    allowance.take(0, budget.tokens - taken)
    assert allowance.fits(0, 1) == 0, "there was room for more"


@given(COSTS, DECODES, DECODES, CHUNKS, st.none() | st.floats(1e-3, 1.0))
def test_a_step_with_decodes_keeps_within_its_target(
    cost: Cost, decodes: Decodes, others: Decodes, wanted: list[tuple[int, int]], target: float | None
) -> None:
    times = learned(cost)
    everyone = Decodes(decodes.tokens + others.tokens, decodes.cached + others.cached)
    limit = 2.7 * times.decode_seconds(*everyone) if target is None else target
    taken = fill(AdaptiveBudget(target, times).for_prompts(512, decodes, everyone), wanted)
    seconds = times.decode_seconds(*decodes) + sum(times.chunk_seconds(*chunk) for chunk in taken)
    least = 64 if target is None else 16
    assert seconds <= limit * SLACK or sum(tokens for _, tokens in taken) <= least


@given(COSTS, DECODES, DECODES)
def test_the_more_wait_the_more_prompts_get(cost: Cost, decodes: Decodes, others: Decodes) -> None:
    budget = AdaptiveBudget(None, learned(cost))
    everyone = Decodes(decodes.tokens + others.tokens, decodes.cached + others.cached)
    alone = budget.for_prompts(512, decodes, decodes).fits(0, 512)
    assert 64 <= alone <= budget.for_prompts(512, decodes, everyone).fits(0, 512)


def test_without_a_target_prompts_get_up_to_two_thirds_of_the_time() -> None:
    times = learned((0.02, 1e-3, 0.0, 0.0))  # Ten decodes take 30 ms.
    ten = Decodes(10, 0)
    assert AdaptiveBudget(None, times).for_prompts(512, ten, ten).fits(0, 512) == pytest.approx(1.7 * 30, abs=15)


def test_in_a_rush_few_decodes_give_way() -> None:
    """With one decode and 63 that wait, a step may take as long as 64 decodes justify."""
    times = learned((0.02, 1e-3, 0.0, 0.0))
    budget = AdaptiveBudget(None, times).for_prompts(512, Decodes(1, 0), Decodes(64, 0))
    assert budget.fits(0, 512) == pytest.approx(2.7 * 84 - 21, rel=0.1)


def test_without_decodes_or_knowledge_the_fixed_budget_holds() -> None:
    times, some = StepTimeModel(), Decodes(12, 0)
    adaptive = AdaptiveBudget(0.001, times)
    assert FixedBudget().for_prompts(500, some, some).budget == PrefillBudget(500, "max_num_batched_tokens")
    assert adaptive.for_prompts(500, some, some).budget == PrefillBudget(500, "max_num_batched_tokens")
    observe(times, (0.01, 1e-3, 1e-6, 0.0), 100)
    assert adaptive.for_prompts(500, some, some).budget == PrefillBudget(16, "target_itl_ms")
    assert adaptive.for_prompts(500, Decodes(0, 0), some).budget == PrefillBudget(500, "max_num_batched_tokens")


@given(COSTS, st.floats(0.01, 0.5), st.integers(8, 40))
def test_prompts_of_a_limited_tenant_take_their_share_of_the_time_and_no_more(
    cost: Cost, share: float, steps: int
) -> None:
    times = learned(cost)
    budget, decodes = AdaptiveBudget(None, times), Decodes(20, 2000)
    decoding, taken, largest = times.decode_seconds(*decodes), 0.0, 0.0
    for _ in range(steps):
        allowance = budget.for_prompts(512, decodes, decodes, {"ahead": share})
        assert allowance.fits(0, 512) == allowance.fits(0, 512, "another")
        tokens = allowance.fits(1000, 300, "ahead")
        if tokens:
            allowance.take(1000, tokens, "ahead")
            largest = max(largest, times.chunk_seconds(1000, tokens))
            taken += times.chunk_seconds(1000, tokens)
    assert 0 < taken <= (steps * share * decoding + largest) * SLACK, "more than its credit, overdrawn by one chunk"
