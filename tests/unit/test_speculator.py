"""What drafted tokens cost is learned from the steps that have some."""

import math

from inflight.scheduler.plan import ScheduledRequest, StepPlan, Want
from inflight.scheduler.prefill_budget import PrefillAllowance
from inflight.scheduler.row_times import RowTimes
from inflight.speculation.measured_step_time import MeasuredStepTime
from inflight.speculation.speculative_config import SpeculativeConfig
from inflight.speculation.speculator import Speculator
from tests.unit.builders import admit, make_request, make_tables, tables_of
from tests.unit.fake_drafter import FakeDrafter

USERS, STEPS = 8, 200
BASE, ROW = 0.010, 0.0005
"""Seconds of a step with a row for each user, and of each further row."""


def drafted_after(factor: float, stall: float = 0.0) -> int:
    """Number of drafted tokens in a step after some in which a drafted token took `factor` times what was measured.

    In one of them, the machine stood still for `stall` seconds.
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
    for number in range(STEPS):
        scheduled = speculator.with_drafts(decodes, PrefillAllowance(1000, seconds=math.inf))
        drafted = sum(each.num_draft for each in scheduled)
        for request in requests:
            tables.trim(request)
        plan = StepPlan(tuple(scheduled), tables_of([request.blocks for request in requests]))
        speculator.observe_step(plan, BASE + factor * ROW * drafted + stall * (number == STEPS // 2))
    return drafted


def test_fewer_tokens_are_drafted_where_they_take_longer_than_was_measured() -> None:
    assert drafted_after(1.0) > drafted_after(1.6) > 0
    assert drafted_after(5.0) == 0


def test_a_step_that_stood_still_does_not_end_drafts() -> None:
    assert drafted_after(1.0, stall=60.0) > 0
