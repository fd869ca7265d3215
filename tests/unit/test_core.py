"""The engine's loop on one thread: submission, cancellation, failing steps, counters."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight import InvalidRequest, QueueFull
from inflight.progress import Progress
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.queue_policy import QueuePolicies
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_model import expected_output
from tests.unit.stepped_core import drain, ends, make_core


def test_events_tell_a_request_token_by_token_and_how_it_ended() -> None:
    core, _ = make_core()
    requests = [make_request(name, 5, max_tokens=6, stop_token_ids=[3]) for name in "abc"]
    for request in requests:
        core.submit(request)
    events = drain(core)
    for request in requests:
        mine = [event for event in events if event.request is request]
        tokens, reason = expected_output(request)
        assert [token for event in mine for token in event.token_ids] == tokens
        assert [event.finish_reason for event in mine] == [None] * (len(tokens) - 1) + [reason]
    assert core.stats().blocks_used == 0


def test_a_full_queue_refuses_and_takes_requests_again_later() -> None:
    core, _ = make_core(max_queue_size=2)
    core.submit(make_request("a"))
    core.submit(make_request("b"))
    with pytest.raises(QueueFull, match="2 requests wait; max_queue_size is 2"):
        core.submit(make_request("c"))
    assert core.num_waiting == 2
    core.step()
    core.submit(make_request("c"))
    assert set(ends(drain(core))) == {"a", "b", "c"}


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(1, 14), st.integers(0, 2)), max_size=12))
def test_samples_of_a_request_get_all_of_their_places_or_none(size: int, arrivals: list[tuple[int, int]]) -> None:
    core, _ = make_core(make_scheduler(max_num_seqs=2), max_queue_size=size)
    accepted = 0
    for number, (samples, steps) in enumerate(arrivals):
        before, places = core.num_waiting, size - core.num_waiting
        requests = [make_request(f"{number}-{index}", [5, 6, 7]) for index in range(samples)]
        if samples > size:
            with pytest.raises(InvalidRequest, match=f"n is {samples}; it must be at most max_queue_size, {size}"):
                core.submit(*requests)
        elif samples > places:
            with pytest.raises(QueueFull, match=f"{before} requests wait; max_queue_size is {size}"):
                core.submit(*requests)
        else:
            core.submit(*requests)
            accepted += samples
            before += samples
        assert core.num_waiting == before
        for _ in range(steps):
            core.step()
    core.cancel("nobody")
    while core.has_work:
        core.step()
    assert core.stats().blocks_used == 0
    assert core.metrics.sampled_tokens == 4 * accepted


def test_samples_of_a_request_share_its_prompt() -> None:
    core, _ = make_core()
    samples = [make_request(f"{index}", range(18), seed=index) for index in range(8)]
    core.submit(*samples)
    assert ends(drain(core)) == {request.request_id: "length" for request in samples}
    # Its four full blocks are computed once, and the rest by each sample.
    stats = core.stats()
    assert stats.prompt_tokens - stats.cached_tokens == 18 + 7 * 2


def test_how_far_a_request_is() -> None:
    core, _ = make_core(make_scheduler(max_num_seqs=1, budget=4))
    core.submit(make_request("a", 6), make_request("b", 5, priority=2))
    seen = []
    for _ in range(3):
        seen.append((core.progress("a"), core.progress("b")))
        core.step()
    waits = Progress(running=False, priority=2, prompt_tokens=5, computed_prompt_tokens=0)
    a = Progress(running=False, priority=0, prompt_tokens=6, computed_prompt_tokens=0)
    assert seen == [
        (a, waits),
        (replace(a, running=True, computed_prompt_tokens=4), waits),
        (replace(a, running=True, computed_prompt_tokens=6), waits),
    ]
    drain(core)
    assert core.progress("a") is None


def test_waiting_requests_are_counted_by_level() -> None:
    policies = QueuePolicies(priority_levels=3, default_priority_level=2)
    core, _ = make_core(make_scheduler(max_num_seqs=1, policies=policies))
    for name, level in (("a", 2), ("b", 3), ("c", 3)):
        core.submit(make_request(name, priority=level))
    assert core.stats().waiting_at_level == {1: 0, 2: 1, 3: 2}
    core.step()
    core.submit(make_request("d", priority=1))
    assert core.stats().waiting_at_level == {1: 1, 2: 0, 3: 2}
    many, _ = make_core(make_scheduler(policies=QueuePolicies(priority_levels=10**9, default_priority_level=1)))
    assert list(many.stats().waiting_at_level) == list(range(1, 17))
    assert make_core()[0].stats().waiting_at_level == {}


def test_no_sample_is_accepted_where_one_has_an_id_in_use() -> None:
    core, _ = make_core()
    core.submit(make_request("b"))
    with pytest.raises(InvalidRequest, match="request_id 'b' belongs to an unfinished request"):
        core.submit(make_request("a"), make_request("b"))
    assert core.num_waiting == 1


def test_requests_that_run_take_no_place_in_the_queue() -> None:
    core, _ = make_core(make_scheduler(max_num_seqs=1), max_queue_size=1)
    core.submit(make_request("a"))
    core.step()
    core.submit(make_request("b"))
    core.step()
    with pytest.raises(QueueFull):
        core.submit(make_request("c"))


@pytest.mark.parametrize("steps", [0, 1])
def test_the_queue_is_bounded_in_tokens_too(steps: int) -> None:
    """Requests count from their arrival, whether or not a step has taken them in yet."""
    core, _ = make_core(make_scheduler(max_num_seqs=1), max_queue_tokens=20)
    core.submit(make_request("runs", 12, max_tokens=9))
    core.step()
    core.submit(make_request("a", 12))
    for _ in range(steps):
        core.step()
    assert core.stats().waiting_tokens == 12
    with pytest.raises(QueueFull, match="requests of 12 tokens wait, and this one has 9; max_queue_tokens is 20"):
        core.submit(make_request("b", 9))
    core.submit(make_request("c", 8))
    assert core.stats().waiting_tokens == 20
    core.cancel("a")
    core.step()
    core.submit(make_request("b", 9))
    assert set(ends(drain(core))) == {"runs", "b", "c"}
    assert core.stats().waiting_tokens == 0


@pytest.mark.parametrize("steps", [0, 1])
def test_an_unfinished_request_keeps_its_id_to_itself(steps: int) -> None:
    core, _ = make_core(make_scheduler(max_num_seqs=1))
    for name in ("runs", "waits"):
        core.submit(make_request(name))
    for _ in range(steps):
        core.step()
    for name in ("runs", "waits"):
        with pytest.raises(InvalidRequest, match=f"request_id '{name}' belongs to an unfinished request"):
            core.submit(make_request(name))
    drain(core)
    core.submit(make_request("runs"))
    assert ends(drain(core)) == {"runs": "length"}


def test_cancelled_requests_end_before_the_next_step() -> None:
    core, _ = make_core(make_scheduler(max_num_seqs=1))
    for name in ("runs", "waits", "stays"):
        core.submit(make_request(name))
    core.step()
    core.submit(make_request("new"))
    for name in ("runs", "waits", "new"):
        core.cancel(name)
    assert ends(core.step()) == {"runs": "cancelled", "waits": "cancelled", "new": "cancelled"}
    assert ends(drain(core)) == {"stays": "length"}
    assert core.stats().blocks_used == 0


def test_cancelling_twice_or_what_is_not_here_changes_nothing() -> None:
    core, _ = make_core()
    core.cancel("never")
    core.submit(make_request("a"))
    core.cancel("a")
    core.cancel("a")
    assert ends(drain(core)) == {"a": "cancelled"}
    core.cancel("a")
    assert drain(core) == []


def test_a_late_cancellation_does_not_hit_a_new_request_of_the_same_name() -> None:
    core, _ = make_core()
    core.submit(make_request("a", max_tokens=1))
    assert ends(core.step()) == {"a": "length"}
    core.cancel("a")
    core.submit(make_request("a"))
    assert ends(drain(core)) == {"a": "length"}


def test_a_cancellation_that_comes_during_the_last_step_does_not_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core, model = make_core()
    run = model.run

    def cancelled_meanwhile(plan: StepPlan):  # type: ignore[no-untyped-def]
        core.cancel("a")
        return run(plan)

    core.submit(make_request("a", max_tokens=1))
    with monkeypatch.context() as patch:
        patch.setattr(model, "run", cancelled_meanwhile)
        assert ends(core.step()) == {"a": "length"}
    core.submit(make_request("a"))
    assert ends(drain(core)) == {"a": "length"}


def test_a_failing_step_ends_its_own_requests_and_no_others() -> None:
    core, model = make_core(make_scheduler(max_num_seqs=2))
    for name in ("bad", "beside", "later"):
        core.submit(make_request(name))
    model.poison = {"bad"}
    events = core.step()
    assert ends(events) == {"bad": "error", "beside": "error"}
    assert {event.error for event in events} == {"RuntimeError: out of luck"}
    assert core.stats().blocks_used == 0
    assert ends(drain(core)) == {"later": "length"}


def test_what_a_failing_step_computed_is_not_reused() -> None:
    core, model = make_core()
    core.submit(make_request("bad", range(12)))
    model.poison = {"bad"}
    core.step()
    core.submit(make_request("same", range(12)))
    drain(core)
    assert core.stats().cached_tokens == 0


def test_hits_of_a_failing_step_count_for_no_tier() -> None:
    core, model = make_core()
    core.submit(make_request("first", range(12)))
    drain(core)
    core.submit(make_request("bad", range(12)))
    model.poison = {"bad"}
    core.step()
    core.submit(make_request("good", range(12)))
    drain(core)
    stats = core.stats()
    assert sum(stats.hits.values()) == stats.cached_tokens > 0


def test_a_failing_step_leaves_requests_alone_that_it_had_no_share_for() -> None:
    core, model = make_core(make_scheduler(budget=4, max_num_seqs=4))
    core.submit(make_request("long", 30))
    core.step()
    core.submit(make_request("next", 4))
    model.poison = {"long"}
    assert ends(core.step()) == {"long": "error"}
    assert ends(drain(core)) == {"next": "length"}


def test_the_counters_say_what_was_done() -> None:
    core, _ = make_core(make_scheduler(num_blocks=20, block_size=4, budget=8))
    core.submit(make_request("a", range(10), max_tokens=3))
    drain(core)
    core.submit(make_request("b", range(10), max_tokens=3))
    core.step()
    stats = core.stats()
    assert (stats.running, stats.waiting, stats.preemptions) == (1, 0, 0)
    assert (stats.prompt_tokens, stats.cached_tokens) == (20, 8)
    assert (stats.steps, stats.generated_tokens) == (5, 4)
    assert stats.computed_tokens == 10 + 2 + 2
    assert (stats.blocks_total, stats.blocks_used, stats.blocks_free) == (20, 3, 17)
    assert stats.step_seconds > 0
    drain(core)
    assert core.stats().blocks_cached > 0


def test_a_prompt_is_counted_once_even_if_its_request_is_preempted() -> None:
    core, _ = make_core(make_scheduler(num_blocks=4, block_size=2, budget=16, next_tokens=0))
    for name in "ab":
        core.submit(make_request(name, 4, max_tokens=4))
    drain(core)
    stats = core.stats()
    assert stats.preemptions > 0
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (8, 0, 8)
