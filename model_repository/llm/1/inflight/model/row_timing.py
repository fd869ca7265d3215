"""Measures how long steps of some numbers of rows take, before the first request comes."""

import time
from collections.abc import Callable

import numpy as np

from inflight.request import Request
from inflight.sampling_params import SamplingParams
from inflight.scheduler.plan import ScheduledRequest, StepPlan, Want
from inflight.scheduler.row_times import RowTimes

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_REPEATS = 2
# A part of the time that a start may take. On a slow machine, large steps are not measured.
_SECONDS = 1.5


def measure_rows(run: Callable[[StepPlan], object], *, block_size: int, num_blocks: int, max_rows: int) -> RowTimes:
    """Return the shortest of some times for each number of rows, all of which are sampled.

    Args:
        run: computes a plan, like `ModelRunner.run`, and writes into the first blocks of the cache.
        block_size: tokens of a block.
        num_blocks: blocks of the cache.
        max_rows: maximum number of rows in a step. 1 and 2 are measured in any case, as a line needs two points.
    """
    most = min(max_rows, num_blocks * block_size)
    rows, seconds = [], []
    begun = time.perf_counter()
    for count in sorted({1, *(each for each in _ROWS if each < most), min(max(2, most), _ROWS[-1])}):
        plan = _plan(count, block_size)
        run(plan)
        rows.append(count)
        seconds.append(min(_seconds(run, plan) for _ in range(_REPEATS)))
        if count > 1 and time.perf_counter() - begun > _SECONDS:
            break
    return RowTimes(rows, seconds)


def _plan(rows: int, block_size: int) -> StepPlan:
    """One request, with a draft of all tokens but the first."""
    request = Request("rows", [0], SamplingParams(temperature=0.0), max_tokens=rows, seed=0)
    each = ScheduledRequest(request, 0, [0], Want.TOKEN, begins=False, last_token_at=None).with_draft([0] * (rows - 1))
    return StepPlan((each,), np.arange(-(-rows // block_size), dtype=np.int64)[None])


def _seconds(run: Callable[[StepPlan], object], plan: StepPlan) -> float:
    begun = time.perf_counter()
    run(plan)
    return time.perf_counter() - begun
