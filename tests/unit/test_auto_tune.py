"""Settings that tune themselves: bounds, targets and rest."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.core import EngineCore
from inflight.metric_families.families import FAMILIES
from inflight.request import Request
from inflight.scheduler.admission import MaxUtilization
from inflight.scheduler.auto_tune.auto_tuner import AutoTuner
from inflight.scheduler.auto_tune.change import Change
from inflight.scheduler.auto_tune.chunk_share import ChunkShare
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.scheduler_config import AUTO_TUNE_OBJECTIVES, SchedulerConfig
from inflight.step_result import StepResult
from inflight.trace import Trace
from tests.unit.builders import make_request, make_scheduler

TTFT, ITL = 1.0, 0.05
MOST_SEQS, MOST_TOKENS = 16, 512
Arrivals = list[tuple[float, int, int]]
"""Times, prompt tokens and output tokens."""
ARRIVALS = st.lists(st.tuples(st.floats(0, 0.3), st.integers(1, 400), st.integers(1, 60)), min_size=20, max_size=80)


def tuned(objective: str, blocks: int = 4000) -> Scheduler:
    return make_scheduler(
        blocks,
        max_num_seqs=MOST_SEQS,
        budget=MOST_TOKENS,
        prefix_caching=False,
        auto_tune=objective,
        target_ttft_ms=1e3 * TTFT,
        target_itl_ms=1e3 * ITL,
    )


def step_seconds(plan: StepPlan) -> float:
    return 0.01 + 1e-4 * plan.num_tokens + 1e-6 * plan.num_cached


def serve(scheduler: Scheduler, arrivals: Arrivals) -> Iterator[tuple[float, StepPlan]]:
    """Serve the requests and yield each step with the time at which it begins."""
    now, waiting = 0.0, [make_request(f"{i}", p, max_tokens=o, arrival=at) for i, (at, p, o) in enumerate(arrivals)]
    while waiting or scheduler.waiting or scheduler.running:
        while waiting and waiting[0].arrival <= now:
            scheduler.add(waiting.pop(0))
        plan = scheduler.schedule(now)
        yield now, plan
        if not plan.scheduled:
            moments = [request.arrival for request in waiting[:1]]
            now = min([*moments, *([] if scheduler.wakes_at is None else [scheduler.wakes_at])])
            continue
        seconds = step_seconds(plan)
        now += seconds
        scheduler.observe(plan, seconds)
        scheduler.commit(plan, [StepResult((7,))] * len(plan.answered), now)


def in_order(gaps: Arrivals) -> Arrivals:
    at, arrivals = 0.0, []
    for gap, prompt, output in gaps:
        at += gap
        arrivals.append((at, prompt, output))
    return arrivals


def every(seconds: float, count: int, prompt: int, output: int) -> Arrivals:
    return [(seconds * i, prompt, output) for i in range(count)]


def the_tuner(scheduler: Scheduler) -> AutoTuner:
    assert scheduler.tuner is not None
    return scheduler.tuner


@given(st.sampled_from(AUTO_TUNE_OBJECTIVES), ARRIVALS, st.sampled_from([150, 4000]))
@settings(max_examples=25, deadline=None)
def test_values_stay_within_their_bounds(objective: str, gaps: Arrivals, blocks: int) -> None:
    scheduler = tuned(objective, blocks)
    tuner = the_tuner(scheduler)
    for _, plan in serve(scheduler, in_order(gaps)):
        assert 1 <= tuner.max_num_seqs <= MOST_SEQS
        assert len(scheduler.running) <= scheduler.limit.tokens <= MOST_TOKENS
        assert plan.num_tokens <= scheduler.limit.tokens
        assert MaxUtilization.next_tokens <= tuner.watermark <= 128
        if objective != "throughput":
            assert ITL / 2 <= tuner.step_seconds <= TTFT / 4
        for change in plan.changes:
            assert change.before != change.after == tuner.values[change.setting]
            assert change.reason


@given(ARRIVALS)
@settings(max_examples=6, deadline=None)
def test_nothing_is_lost(gaps: Arrivals) -> None:
    for objective in AUTO_TUNE_OBJECTIVES:
        scheduler = tuned(objective)
        tokens = sum(len(plan.sampling) for _, plan in serve(scheduler, in_order(gaps)))
        assert tokens == sum(output for _, _, output in gaps)


@pytest.mark.parametrize("objective", AUTO_TUNE_OBJECTIVES)
@pytest.mark.parametrize(("seconds", "prompt", "output"), [(0.2, 60, 40), (0.3, 1200, 20), (0.05, 16, 30)])
def test_a_steady_load_brings_no_change_back_and_forth(
    objective: str, seconds: float, prompt: int, output: int
) -> None:
    scheduler = tuned(objective)
    changes: defaultdict[str, list[Change]] = defaultdict(list)
    for now, plan in serve(scheduler, every(seconds, round(50 / seconds), prompt, output)):
        for change in plan.changes:
            if 25 < now < 50:
                changes[change.setting].append(change)
    for setting, own in changes.items():
        directions = {change.after > change.before for change in own}
        assert len(directions) == 1, (setting, own)


def test_steps_keep_within_the_target_where_requests_can_spare_nothing() -> None:
    scheduler = tuned("goodput")
    tuner = the_tuner(scheduler)
    late = 0
    arrivals = every(0.1, 250, 900, 16)
    for now, plan in serve(scheduler, arrivals):
        decodes = [each for each in plan.scheduled if each.last_token_at is not None]
        if now > 10 and decodes and tuner.step_seconds <= ITL:
            late += step_seconds(plan) > 1.01 * ITL
    assert late == 0


def test_a_load_of_long_contexts_lowers_the_number_of_sequences() -> None:
    scheduler = make_scheduler(
        20_000,
        max_num_seqs=64,
        budget=MOST_TOKENS,
        prefix_caching=False,
        auto_tune="goodput",
        target_itl_ms=20.0,
    )
    reasons = [
        change.reason
        for _, plan in serve(scheduler, every(0.05, 60, 900, 40))
        for change in plan.changes
        if change.setting == "max_num_seqs"
    ]
    assert reasons
    assert the_tuner(scheduler).max_num_seqs < 64


def test_preemptions_raise_the_watermark_and_quiet_lowers_it() -> None:
    scheduler = tuned("throughput", 60)
    crowd = [(0.0, 8, 60) for _ in range(12)]
    levels = []
    for _, _ in serve(scheduler, [*crowd, *[(60.0 + i, 4, 40) for i in range(100)]]):
        levels.append(the_tuner(scheduler).watermark)
    assert scheduler.preemptor.num_preemptions
    assert max(levels) > MaxUtilization.next_tokens
    assert levels[-1] < max(levels)


def test_prompts_go_side_by_side_only_while_their_lengths_vary() -> None:
    share = ChunkShare()
    for _ in range(24):
        share.observe(1000)
    assert share.look() is None
    for length in [20] * 18 + [2000] * 6:
        share.observe(length)
    change = share.look()
    assert change is not None
    assert (change.before, change.after) == (0, 1)
    for _ in range(24):
        share.observe(1000)
    assert share.look() is not None
    assert not share.is_shared


def busy_seconds(scheduler: Scheduler, arrivals: Arrivals) -> tuple[float, float]:
    """Return the seconds of all steps, and the longest time between two steps."""
    busy, longest, last = 0.0, 0.0, None
    for now, plan in serve(scheduler, arrivals):
        if plan.scheduled:
            if last is not None and any(each.last_token_at is not None for each in plan.scheduled):
                longest = max(longest, now + step_seconds(plan) - last)
            busy += step_seconds(plan)
            last = now + step_seconds(plan)
    return busy, longest


def test_cost_waits_for_fuller_batches_within_the_targets() -> None:
    arrivals = every(0.25, 60, 40, 40)
    cheap, longest = busy_seconds(tuned("cost"), arrivals)
    dear, _ = busy_seconds(tuned("goodput"), arrivals)
    assert cheap < 0.6 * dear
    assert longest <= 1.02 * ITL
    scheduler = tuned("cost")
    requests: dict[Request, float] = {}
    for _, plan in serve(scheduler, arrivals):
        requests |= {each.request: each.request.arrival for each in plan.scheduled}
    assert all((request.first_token_at or 0.0) - arrival <= TTFT for request, arrival in requests.items())


def test_cost_lets_a_patient_request_delay_no_other() -> None:
    scheduler = tuned("cost")
    for _ in serve(scheduler, every(0.25, 40, 40, 40)):
        pass
    now = 100.0
    scheduler.add(make_request("patient", arrival=now, target_ttft_ms=3_600_000))
    assert not scheduler.schedule(now).scheduled
    assert scheduler.wakes_at is not None
    assert scheduler.wakes_at > now + 1000
    scheduler.add(make_request("other", arrival=now))
    assert not scheduler.schedule(now).scheduled
    assert scheduler.wakes_at < now + TTFT


def test_changes_are_in_the_trace_and_values_in_the_metrics(tmp_path: Path) -> None:
    scheduler = tuned("goodput", 60)
    now = 0.0

    class Runner:
        def run(self, plan: StepPlan) -> list[StepResult]:
            nonlocal now
            now += step_seconds(plan)
            return [StepResult((7,))] * len(plan.answered)

    trace = Trace(str(tmp_path / "trace.json"), MOST_TOKENS, lambda: now)
    core = EngineCore(scheduler, Runner(), max_queue_size=100, clock=lambda: now, trace=trace)
    for i in range(12):
        core.submit(make_request(f"{i}", 8, max_tokens=60))
    while core.has_work:
        core.step()
    trace.flush()
    events = [event for event in json.loads((tmp_path / "trace.json").read_text()) if "reason" in event.get("args", {})]
    stats = core.stats()
    assert len(events) == sum(stats.tunings.values()) > 0
    assert {event["args"]["setting"] for event in events} <= stats.tuned.keys() == stats.tunings.keys()
    shown = {family.name: family.read(stats) for family in FAMILIES if "auto_tune" in family.name and family.read}
    assert shown == {"inflight:auto_tune_setting": stats.tuned, "inflight:auto_tune_changes_total": stats.tunings}


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"auto_tune": "speed"}, "auto_tune is 'speed'; it must be empty or one of goodput"),
        ({"auto_tune": "goodput"}, "target_itl_ms must be given"),
        ({"auto_tune": "throughput", "batching_strategy": "static"}, "batching_strategy must be 'continuous'"),
        ({"price_per_hour": -1.0}, "price_per_hour is -1.0"),
    ],
)
def test_bad_settings_are_named(given_settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**given_settings)  # type: ignore[arg-type]
