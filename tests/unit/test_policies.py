"""Who is next under each policy, and that nobody is passed for ever."""

import pytest

from inflight.request import Request
from inflight.scheduler.queue_policy import DELAY, QueuePolicies, QueuePolicy
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.step_time import attention_pairs
from tests.unit.builders import holds, make_request, make_scheduler, step, waiting
from tests.unit.fake_model import FakeModel

LEVELS = QueuePolicies(priority_levels=3, default_priority_level=2)


def queued(scheduler: Scheduler, *requests: Request) -> list[str]:
    for request in requests:
        scheduler.add(request)
    return waiting(scheduler)


# -- shortest job first ------------------------------------------------------------------------------------------------


def test_the_least_work_goes_first_prompt_and_output_together() -> None:
    scheduler = make_scheduler(scheduling_policy="sjf")
    jobs = [make_request("a", 9, max_tokens=4), make_request("b", 4, max_tokens=8), make_request("c", 5, max_tokens=20)]
    assert queued(scheduler, *jobs) == ["b", "a", "c"]


def test_what_the_cache_holds_is_no_work() -> None:
    scheduler = make_scheduler(scheduling_policy="sjf", budget=64)
    scheduler.add(make_request("warm", range(20), max_tokens=1))
    step(scheduler)
    long, short = make_request("long", range(21), max_tokens=4), make_request("short", 12, max_tokens=4)
    assert queued(scheduler, short, long) == ["long", "short"]


@pytest.mark.parametrize(("ageing", "gap", "overtakers"), [(10.0, 0.5, 3), (10.0, 1.0, 1), (40.0, 0.5, 0)])
def test_a_job_is_overtaken_by_those_alone_that_come_before_it_has_aged(
    ageing: float, gap: float, overtakers: int
) -> None:
    """20 tokens more are made up for in 20 / ageing seconds; one that comes just then doesn't pass any more."""
    scheduler = make_scheduler(scheduling_policy="sjf", sjf_ageing=ageing)
    scheduler.add(make_request("long", 24, max_tokens=4))
    for number in range(1, 20):
        scheduler.add(make_request(f"short{number}", 4, max_tokens=4, arrival=gap * number))
    assert waiting(scheduler).index("long") == overtakers


def test_a_burst_becomes_late_little_by_little() -> None:
    """Nothing is known of times yet, so all of it is late at once. No step spends its time on sorting."""
    scheduler = make_scheduler(scheduling_policy="sjf", num_blocks=400, max_num_seqs=1)
    jobs = [make_request(f"r{number}", 40 - number % 30, max_tokens=4) for number in range(200)]
    for job in jobs:
        scheduler.add(job)
    late = []
    for _ in range(5):
        scheduler.expire(0.0)
        late.append(sum(job.is_late for job in jobs))
    assert late == [64, 128, 192, 200, 200]
    assert waiting(scheduler) == [job.request_id for job in jobs]


# -- priority, with ageing ---------------------------------------------------------------------------------------------


def busy_with_low(**sizes: int) -> Scheduler:
    scheduler = make_scheduler(
        scheduling_policy="priority", priority_ageing_seconds=10.0, policies=LEVELS, budget=32, **sizes
    )
    for name in ("low1", "low2"):
        scheduler.add(make_request(name, 8, max_tokens=8, priority=3))
    step(scheduler)
    assert list(scheduler.running) == ["low1", "low2"]
    return scheduler


@pytest.mark.parametrize("sizes", [{"max_num_seqs": 2}, {"num_blocks": 6}], ids=["slots", "blocks"])
def test_a_higher_level_gets_in_at_once(sizes: dict[str, int]) -> None:
    scheduler = busy_with_low(**sizes)
    scheduler.add(make_request("high", 8, max_tokens=2, priority=1))
    assert step(scheduler) == {"low1": 1, "high": 8}, "the last admitted makes way, not the first"
    assert waiting(scheduler) == ["low2"]
    while holds(scheduler, "low2"):
        assert step(scheduler)


def test_nobody_makes_way_in_vain() -> None:
    """A long request waits for one of its own level. Meanwhile a lower level goes on."""
    scheduler = make_scheduler(
        scheduling_policy="priority", policies=LEVELS, num_blocks=12, budget=64, prefix_caching=False
    )
    scheduler.add(make_request("high", 24, max_tokens=3, priority=1))
    scheduler.add(make_request("low", 8, max_tokens=8, priority=3))
    assert step(scheduler) == {"high": 24, "low": 8}
    scheduler.add(make_request("long", 28, max_tokens=2, priority=1))
    assert step(scheduler) == {"high": 1, "low": 1}
    assert step(scheduler) == {"high": 1, "low": 1}
    assert step(scheduler) == {"low": 1, "long": 28}, "now there is room for both"


def test_the_only_one_that_runs_makes_way_in_the_same_step() -> None:
    scheduler = busy_with_low(max_num_seqs=2)
    for name in ("high1", "high2"):
        scheduler.add(make_request(name, 4, max_tokens=2, priority=1))
    assert "high1" in step(scheduler)
    assert "high2" in step(scheduler)
    assert waiting(scheduler) == ["low1", "low2"]
    scheduler = make_scheduler(scheduling_policy="priority", policies=LEVELS, max_num_seqs=1)
    scheduler.add(make_request("low", 4, priority=3))
    step(scheduler)
    scheduler.add(make_request("high", 4, priority=1))
    assert step(scheduler) == {"high": 4}


def test_a_higher_level_does_not_wait_for_the_long_prompt_of_a_lower_one() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", policies=LEVELS, budget=8)
    scheduler.add(make_request("low", 40, priority=3))
    assert step(scheduler) == {"low": 8}
    scheduler.add(make_request("high", 5, priority=1))
    assert step(scheduler) == {"high": 5, "low": 3}
    assert step(scheduler) == {"high": 1, "low": 7}


def test_an_equal_takes_nobodys_place() -> None:
    scheduler = busy_with_low(max_num_seqs=2)
    scheduler.add(make_request("same", 8, priority=3))
    assert step(scheduler) == {"low1": 1, "low2": 1}


def test_whoever_has_waited_long_enough_is_passed_and_displaced_no_more() -> None:
    scheduler = busy_with_low(max_num_seqs=2)  # Two levels are worth 20 seconds.
    scheduler.add(make_request("waits", 8, priority=3))
    scheduler.add(make_request("early", 8, priority=1, arrival=19.9))
    scheduler.add(make_request("late", 8, priority=1, arrival=20.1))
    assert waiting(scheduler) == ["early", "waits", "late"]
    assert step(scheduler).keys() == {"low1", "early"}
    assert waiting(scheduler) == ["low2", "waits", "late"]
    assert step(scheduler).keys() == {"low1", "early"}, "'late' displaces nobody"


def test_nobody_makes_way_where_nobody_may_be_preempted() -> None:
    scheduler = make_scheduler(
        scheduling_policy="priority", policies=LEVELS, max_num_seqs=1, batch_scheduler_policy="guaranteed_no_evict"
    )
    scheduler.add(make_request("low", 8, priority=3))
    step(scheduler)
    scheduler.add(make_request("high", 8, priority=1))
    assert step(scheduler) == {"low": 1}


def test_a_delayed_request_displaces_nobody() -> None:
    """Whoever made way would be queued before it, be admitted again and have to make way again, for ever."""
    policies = QueuePolicies(QueuePolicy(timeout_action=DELAY), priority_levels=2, default_priority_level=2)
    scheduler = make_scheduler(scheduling_policy="priority", policies=policies, max_num_seqs=1)
    scheduler.add(make_request("low", 4, max_tokens=4, priority=2))
    step(scheduler)
    late = make_request("late", 4, max_tokens=4, priority=1)
    late.wait_until = 0.0
    scheduler.add(late)
    scheduler.expire(0.0)
    steps = [step(scheduler) for _ in range(7)]
    assert steps == [{"low": 1}] * 3 + [{"late": 4}] + [{"late": 1}] * 3


# -- time to first token -----------------------------------------------------------------------------------------------


def slo(**settings: object) -> Scheduler:
    """A scheduler that knows that a prompt takes 1 ms per token."""
    scheduler = make_scheduler(scheduling_policy="slo", target_ttft_ms=100.0, **settings)  # type: ignore[arg-type]
    for tokens in (100, 200, 300) * 20:
        scheduler.times.observe(tokens, 0, attention_pairs(0, tokens), tokens / 1000)
    return scheduler


def test_whoever_must_start_soonest_goes_first() -> None:
    long, short = make_request("long", 50), make_request("short", 20, arrival=0.01)
    urgent = make_request("urgent", 20, arrival=0.02, target_ttft_ms=30)
    assert queued(slo(), short, long, urgent) == ["urgent", "long", "short"]


def test_a_lost_request_is_shed_with_its_target() -> None:
    scheduler = slo(shed_lost_requests=True)
    lost, timely = make_request("lost", 50, target_ttft_ms=80), make_request("timely", 50)
    queued(scheduler, lost, timely)
    assert scheduler.expire(0.025) == []
    assert scheduler.expire(0.035) == [(lost, "shed", "target_ttft_ms is 80; it can't be met any more")]
    assert waiting(scheduler) == ["timely"]


def test_a_shed_request_leaves_nothing_in_host_memory() -> None:
    scheduler = slo(
        shed_lost_requests=True, next_tokens=0, num_blocks=4, budget=6, preemption_mode="swap", swap_space_tokens=64
    )
    scheduler.add(make_request("old", 4, max_tokens=9, target_ttft_ms=10))
    young = make_request("young", 12, max_tokens=1)
    scheduler.add(young)
    for _ in range(2):
        step(scheduler)
    assert young.host_blocks
    assert [request for request, _, _ in scheduler.expire(1.0)] == [young]
    scheduler.tables.host.settle()
    assert scheduler.tables.host.num_used == 0


def test_a_request_that_has_run_ends_by_its_deadline_though_its_target_is_lost_too() -> None:
    scheduler = slo(shed_lost_requests=True, next_tokens=0, num_blocks=4, budget=6)
    scheduler.add(make_request("old", 4, max_tokens=9, target_ttft_ms=10))
    young = make_request("young", 12, max_tokens=1)
    young.deadline = 0.2
    scheduler.add(young)
    for _ in range(2):
        step(scheduler)
    assert waiting(scheduler) == ["young"]
    assert scheduler.expire(1.0) == [(young, "deadline", None)]


def test_a_preempted_beam_search_has_no_target_left_to_miss() -> None:
    """It begins again without tokens, but its first one was in time."""
    scheduler = slo(num_blocks=8, next_tokens=0, shed_lost_requests=True)
    model, beams = FakeModel(block_size=4), make_request("beams", 4, max_tokens=12, beam_width=2)
    queued(scheduler, make_request("plain", 4, max_tokens=16), beams)
    while beams.num_preemptions == 0:
        plan = scheduler.schedule(0.0)
        scheduler.commit(plan, model.run(plan), 0.01)
    assert queued(scheduler, make_request("new", 4, target_ttft_ms=20)) == ["beams", "new"]
    assert [request.request_id for request, _, _ in scheduler.expire(1e6)] == ["new"]


def test_one_that_cannot_end_in_time_passes_nobody_who_can_be_in_time() -> None:
    scheduler = slo()
    scheduler.times.decode_seconds = lambda decodes, cached: 0.01 * decodes  # type: ignore[method-assign]
    plain, hopeless, possible = (make_request(name, 20, max_tokens=16) for name in ("plain", "hopeless", "possible"))
    hopeless.deadline, possible.deadline = 0.15, 0.2
    queued(scheduler, plain, hopeless, possible)
    assert waiting(scheduler) == ["hopeless", "possible", "plain"]
    assert scheduler.expire(0.0) == []
    assert waiting(scheduler) == ["possible", "plain", "hopeless"]
    assert scheduler.expire(0.03) == []
    assert waiting(scheduler) == ["plain", "hopeless", "possible"], "now it is too late for the other one, too"


def test_lost_requests_let_others_pass_and_still_finish() -> None:
    scheduler = slo(max_num_seqs=1)
    lost = make_request("lost", 50, max_tokens=1)
    queued(scheduler, lost)
    assert scheduler.expire(0.06) == []
    queued(scheduler, make_request("timely", 4, max_tokens=1, arrival=0.06))
    assert waiting(scheduler) == ["timely", "lost"]
    # It is not behind everything that will ever come.
    assert queued(scheduler, make_request("much later", 4, max_tokens=1, arrival=9.0))[:2] == ["timely", "lost"]
    assert step(scheduler) == {"timely": 4}
    while holds(scheduler, "lost"):
        assert "lost" in step(scheduler)


def test_once_it_has_tokens_there_is_nothing_left_to_miss() -> None:
    scheduler = slo(num_blocks=3, next_tokens=0, shed_lost_requests=True)
    queued(scheduler, make_request("a", 4, max_tokens=8), make_request("b", 4, max_tokens=8))
    while scheduler.preemptor.num_preemptions == 0:
        step(scheduler)
    assert queued(scheduler, make_request("new", 4, target_ttft_ms=20)) == ["b", "new"]
    assert [request.request_id for request, _, _ in scheduler.expire(1e6)] == ["new"]
