"""What drafted tokens cost is learned from the steps that have some."""

import math
from collections.abc import Callable

from inflight.scheduler.plan import ScheduledRequest, StepPlan, Want
from inflight.scheduler.prefill_budget import PrefillAllowance
from inflight.scheduler.row_times import RowTimes
from inflight.speculation.measured_step_time import MeasuredStepTime
from inflight.speculation.speculative_config import SpeculativeConfig
from inflight.speculation.speculator import Speculator
from tests.unit.builders import admit, make_request, make_tables, tables_of
from tests.unit.fake_drafter import FakeDrafter

USERS = 8
BASE, ROW = 0.010, 0.0005
"""Seconds of a step with a row for each user, and of each further row."""


def drafted_tokens(seconds: Callable[[int, int], float], steps: int) -> list[int]:
    """Number of drafted tokens in each step, where step `n` with `k` drafted tokens takes `seconds(n, k)`.

    The measured times say that a step takes `BASE`, and `ROW` more for each drafted token.
    """
    tables = make_tables(num_blocks=1000)
    requests = [make_request(f"r{number}", 4, max_tokens=500) for number in range(USERS)]
    decodes = []
    for request in requests:
        assert admit(tables, request)
        request.token_ids.append(1)
        decodes.append(ScheduledRequest(request, 4, [1], Want.TOKEN, begins=False, last_token_at=0.0))
    rows = [1, USERS, 128]
    times = MeasuredStepTime(RowTimes(rows, [BASE, BASE, BASE + (128 - USERS) * ROW]))
    speculator = Speculator(SpeculativeConfig(), FakeDrafter("half right"), tables, times)
    counts = []
    for number in range(steps):
        scheduled = speculator.with_drafts(decodes, PrefillAllowance(1000, seconds=math.inf))
        counts.append(sum(each.num_draft for each in scheduled))
        for request in requests:
            tables.trim(request)
        plan = StepPlan(tuple(scheduled), tables_of([request.blocks for request in requests]))
        speculator.observe_step(plan, seconds(number, counts[-1]))
    return counts


def where_drafts_cost(factor: float) -> Callable[[int, int], float]:
    """Seconds of steps whose drafted tokens take `factor` times what was measured."""
    return lambda _, drafted: BASE + factor * ROW * drafted


def test_fewer_tokens_are_drafted_where_they_take_longer_than_was_measured() -> None:
    measured, longer = (sum(drafted_tokens(where_drafts_cost(factor), 400)[200:]) for factor in (1.0, 1.6))
    assert measured > longer > 0


def test_drafts_that_cost_far_too_much_are_seldom_tried() -> None:
    counts = drafted_tokens(where_drafts_cost(5.0), 2000)
    assert sum(count > 0 for count in counts[200:]) < 0.02 * 1800


def test_drafts_that_were_too_expensive_are_tried_again() -> None:
    counts = drafted_tokens(
        lambda number, drafted: where_drafts_cost(5.0 if number < 200 else 1.0)(number, drafted), 4000
    )
    assert sum(counts[150:200]) == 0
    assert min(counts[-100:]) > 0


def test_drafts_still_pay_on_a_busy_machine() -> None:
    counts = drafted_tokens(lambda number, drafted: 2 * where_drafts_cost(1.0)(number, drafted), 400)
    assert min(counts[-100:]) > 0


def test_a_step_that_stood_still_does_not_end_drafts() -> None:
    counts = drafted_tokens(lambda number, drafted: BASE + ROW * drafted + 60.0 * (number == 100), 200)
    assert counts[-1] > 0
