"""The highest rate within targets, on results that are made up."""

from dataclasses import replace

import numpy as np
import pytest

from load_tests.experiments.goodput import Targets, goodput
from load_tests.experiments.prefill_decode import PrefillDecode
from load_tests.experiments.stage import simulator
from load_tests.simulate.result import Result
from load_tests.simulate.step_cost import Overlapped, StepCost
from load_tests.traffic import Arrival

COST = StepCost(per_step=1.0, per_token=0.1, per_cached_token=0.0)
TARGETS = Targets("", ttft=2, tpot=3)
# A prompt of 10 tokens takes 2 s, and a decode 1.1 s.
IN_TIME, LATE = 4.0, 4.1


def served(shares: list[float], gap: float = 1.1, in_time: float = IN_TIME) -> Result:
    """A second for each share, in which 10, 20, 30 ... requests arrive. This share of them has its first token in
    time."""
    at, ttft = [], []
    for level, share in enumerate(shares):
        count = 10 * (level + 1)
        at += [level + (place + 1) / count for place in range(count)]
        ttft += [in_time if place < share * count else LATE for place in range(count)]
    # What arrives on an edge belongs to the level before it.
    arrival = np.array(at) - 1e-9 * (np.arange(len(at)) < len(at) - 1)
    count = len(at)
    return Result(
        arrivals=[Arrival(moment, 10, 3, 3) for moment in arrival],
        arrival=arrival,
        prompt=np.full(count, 10),
        output=np.full(count, 3),
        first_token=arrival + np.array(ttft),
        finish=arrival + np.array(ttft) + 2 * gap,
        cached=np.zeros(count, dtype=int),
        preemptions=np.zeros(count, dtype=int),
        gaps=np.full(count, gap),
        gap_counts=np.full(count, 2),
        gap_tenants=np.zeros(count, dtype=int),
        samples=[],
        steps=1,
        step_seconds=1.0,
        padding_tokens=0,
        swaps=0,
    )


@pytest.mark.parametrize(
    ("shares", "rate"),
    [
        ([1.0, 1.0, 1.0], 30.0),
        # Between 20 and 30 requests a second the share falls from 1 to 0.5, and is 0.9 after a fifth of the way.
        ([1.0, 1.0, 0.5], 22.0),
        # A level may be late by chance: only the last one in time counts.
        ([0.8, 1.0, 0.5], 22.0),
        # None is in time. At a rate of 0 all would be.
        ([0.5, 0.5, 0.5], 2.0),
    ],
)
def test_the_rate_is_where_the_share_passes_nine_tenths(shares: list[float], rate: float) -> None:
    assert goodput(served(shares), TARGETS, COST, len(shares)) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize(("gap", "rate"), [(3.29, 20.0), (3.31, 1.0)])
def test_both_targets_count(gap: float, rate: float) -> None:
    assert goodput(served([1.0, 1.0], gap), TARGETS, COST, 2) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize(
    ("ttft", "gap", "rate"), [(1.99, 2.99, 20.0), (2.01, 2.99, 1.0), (1.99, 3.01, 1.0)], ids=["both met", "ttft", "gap"]
)
def test_a_machine_that_overlaps_has_targets_of_its_own(ttft: float, gap: float, rate: float) -> None:
    """Its prompt of 10 tokens and its decode each take 1 s: as long as reading the weights."""
    result = served([1.0, 1.0], gap, in_time=ttft)
    assert goodput(result, TARGETS, Overlapped(**vars(COST)), 2) == pytest.approx(rate, rel=1e-6)


def test_each_model_of_step_times_is_judged_by_its_own_targets() -> None:
    experiment, stage = PrefillDecode(), replace(simulator(), cost=COST, max_requests=2)
    apart, together = served([1.0, 1.0], in_time=1.9), served([1.0, 1.0], in_time=2.1)
    results = {arm.label: [apart if " + " in arm.label else together] for arm in experiment.arms(stage, 1)}
    tight = {label: float(cells[0]) for label, cells in experiment.rows(results, stage).items()}
    assert {gain for label, gain in tight.items() if label.startswith("added")} == {1.0}
    assert min(gain for label, gain in tight.items() if label.startswith("overlapped")) > 1
