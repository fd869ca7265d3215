"""What happens when the blocks run out."""

import random

from inflight.request import Request
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.scheduler import Scheduler
from tests.unit.builders import holds, make_request, make_scheduler, shares, step, waiting

LEVELS = QueuePolicies(priority_levels=3, default_priority_level=2)


def crowded(names: str = "ab", *, num_blocks: int, max_tokens: int = 9) -> tuple[Scheduler, dict[str, Request]]:
    """Requests of one block each, just computed, whose next token needs a second block."""
    scheduler = make_scheduler(next_tokens=0, num_blocks=num_blocks, block_size=4, budget=64)
    requests = {name: make_request(name, 4, max_tokens=max_tokens) for name in names}
    for request in requests.values():
        scheduler.add(request)
    step(scheduler)
    return scheduler, requests


def test_the_youngest_goes_so_that_the_oldest_gets_on() -> None:
    scheduler, requests = crowded(num_blocks=2)
    assert step(scheduler) == {"a": 1}
    assert list(scheduler.running) == ["a"]
    assert waiting(scheduler) == ["b"]
    assert requests["b"].blocks == []
    assert scheduler.preemptor.num_preemptions == 1


def test_the_youngest_may_have_to_go_itself() -> None:
    scheduler, requests = crowded("abc", num_blocks=5)
    # `a` and `b` take the two free blocks, `c` finds none.
    assert step(scheduler) == {"a": 1, "b": 1}
    assert waiting(scheduler) == ["c"]
    assert requests["c"].num_preemptions == 1


def test_preempted_requests_wait_in_order_of_arrival_before_all_others() -> None:
    scheduler, _ = crowded("abcd", num_blocks=4)
    scheduler.add(make_request("e", 4))
    assert step(scheduler) == {"a": 1, "b": 1}
    assert waiting(scheduler) == ["c", "d", "e"]


def test_the_lowest_priority_goes_first_however_old_it_is() -> None:
    scheduler = make_scheduler(next_tokens=0, num_blocks=3, block_size=4, budget=64, policies=LEVELS)
    for name, priority in [("low", 2), ("high", 1)]:
        scheduler.add(make_request(name, 4, max_tokens=9, priority=priority))
        step(scheduler)
    # `low` has two blocks, `high` has one and needs another.
    assert step(scheduler) == {"high": 1}
    assert waiting(scheduler) == ["low"]


def test_of_the_lowest_priority_the_youngest_goes() -> None:
    scheduler = make_scheduler(next_tokens=0, num_blocks=4, block_size=4, budget=64, policies=LEVELS)
    for name, priority in [("old", 2), ("young", 2), ("high", 1)]:
        scheduler.add(make_request(name, 3, max_tokens=9, priority=priority))
    for _ in range(2):
        assert len(step(scheduler)) == 3
    # Each needs a second block and one is free: the first goes to `high`, and `young` gives its own to `old`.
    assert step(scheduler) == {"high": 1, "old": 1}
    assert waiting(scheduler) == ["young"]


def test_a_preempted_request_goes_back_to_the_head_of_its_level_only() -> None:
    scheduler = make_scheduler(next_tokens=0, num_blocks=2, block_size=4, budget=64, max_num_seqs=2)
    for name in ("a", "b"):
        scheduler.add(make_request(name, 4, max_tokens=9, priority=2))
    step(scheduler)
    scheduler.add(make_request("low", 4, priority=3))
    scheduler.add(make_request("same", 4, priority=2))
    scheduler.add(make_request("high", 4, priority=1))
    step(scheduler)
    assert waiting(scheduler) == ["high", "b", "same", "low"]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    scheduler, _ = crowded("ab", num_blocks=3)
    scheduler.add(make_request("d", 1, max_tokens=1))
    plan = scheduler.schedule(0.0)
    assert shares(plan) == {"a": 1}
    assert scheduler.tables.pool.num_free == 1  # Room for `d`, but `b` has just been sent away.


def test_not_even_one_whose_tokens_another_has_computed_too() -> None:
    scheduler = make_scheduler(next_tokens=0, num_blocks=4, block_size=4, budget=64)
    # Both fill the same blocks, each its own: there was nothing to share when they began.
    for name in "ab":
        scheduler.add(make_request(name, range(3), max_tokens=9))
    while scheduler.preemptor.num_preemptions == 0:
        planned = step(scheduler)
    assert planned == {"a": 1}
    assert step(scheduler) == {"a": 1, "b": 1}  # Now `b` shares the blocks of `a`.
    assert scheduler.preemptor.num_preemptions == 1


def test_a_preempted_request_keeps_arrival_tokens_and_seed() -> None:
    scheduler, requests = crowded(num_blocks=2)
    request = requests["b"]
    request.arrival, request.seed = 12.5, 99
    tokens = list(request.token_ids)
    assert len(tokens) == 5
    step(scheduler)
    assert (request.arrival, request.seed, request.token_ids) == (12.5, 99, tokens)
    assert (request.num_computed, request.num_preemptions) == (0, 1)


def test_a_preempted_request_computes_its_output_again_and_goes_on() -> None:
    scheduler, requests = crowded(num_blocks=3, max_tokens=5)
    while holds(scheduler, "a"):
        step(scheduler, token=1)
    assert requests["b"].num_preemptions == 1
    assert requests["b"].num_output == 1
    # What it had computed is still in the cache: only the tokens after the full block are computed.
    assert step(scheduler, token=2) == {"b": 1}
    while holds(scheduler, "b"):
        step(scheduler, token=2)
    assert requests["b"].token_ids[4:] == [7, 2, 2, 2, 2]


def test_a_preempted_request_can_be_removed() -> None:
    scheduler, requests = crowded(num_blocks=2)
    step(scheduler)
    assert scheduler.remove("b") is requests["b"]
    assert waiting(scheduler) == []
    assert scheduler.tables.pool.num_used == len(requests["a"].blocks)


def test_recomputed_tokens_are_not_counted_as_spared_by_the_prefix_cache() -> None:
    scheduler, requests = crowded(num_blocks=3, max_tokens=5)
    while holds(scheduler, "b"):
        step(scheduler)
    assert requests["b"].num_preemptions == 1
    assert requests["b"].num_cached == 0


def test_a_request_in_the_middle_of_its_prompt_can_be_preempted() -> None:
    scheduler = make_scheduler(next_tokens=0, num_blocks=4, block_size=4, budget=6)
    old, young = make_request("a", 4, max_tokens=9), make_request("b", 12, max_tokens=1)
    scheduler.add(old)
    scheduler.add(young)
    assert step(scheduler) == {"a": 4, "b": 2}
    assert step(scheduler) == {"a": 1}
    assert young.num_computed == 0
    while holds(scheduler, "a"):
        step(scheduler)
    while holds(scheduler, "b"):
        step(scheduler)
    assert young.num_output == 1


def test_the_oldest_request_advances_in_every_step_of_a_crowd() -> None:
    draw = random.Random(7)
    scheduler = make_scheduler(next_tokens=0, num_blocks=9, block_size=2, budget=5, max_num_seqs=4)
    left = {str(n): make_request(str(n), draw.randint(1, 8), max_tokens=draw.randint(1, 8)) for n in range(60)}
    for request in left.values():
        scheduler.add(request)
    while left:
        oldest = next(iter(left))
        assert step(scheduler)[oldest] >= 1
        left = {name: request for name, request in left.items() if holds(scheduler, name)}
    assert scheduler.preemptor.num_preemptions > 0
    assert scheduler.tables.pool.num_used == 0
