"""Whom the cache has room for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.request import Request
from inflight.scheduler.admission import FuturePeak, MaxUtilization
from inflight.scheduler.output_lengths.predictor import LengthPredictor
from tests.unit.builders import make_request, make_scheduler, make_tables, step


class Oracle(LengthPredictor):
    """Knows how long every output will be."""

    def observe(self, request: Request) -> None:
        pass

    def past(self, request: Request) -> None:
        pass

    def remaining(self, request: Request, quantile: float = 0.5) -> int:
        return request.max_tokens - request.num_output


def going(known: int, remaining: int) -> Request:
    return make_request("r", known, max_tokens=remaining)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 30)), min_size=1, max_size=12), st.sampled_from([1, 2, 16])
)
def test_the_predicted_peak_is_that_of_a_run_step_by_step(sizes: list[tuple[int, int]], block_size: int) -> None:
    tables = make_tables(block_size=block_size)
    held = []
    for passed in range(31):
        # Half of a sequence's last block is empty on average.
        alive = [known + passed + block_size // 2 for known, remaining in sizes if remaining >= passed]
        held.append(sum(alive))
    peak = FuturePeak(tables, Oracle())._peak([going(*size) for size in sizes])
    assert peak == tables.blocks_for(max(held))


def test_one_that_fits_now_but_not_at_the_peak_has_to_wait() -> None:
    # By the end of 'a' both would hold 2 * (4 + 12) tokens.
    for num_blocks, joins in ((35, True), (31, False)):
        scheduler = make_scheduler(num_blocks=num_blocks, block_size=1, batch_scheduler_policy="future_peak")
        for name in "ab":
            scheduler.add(make_request(name, 4, max_tokens=12))
        assert ("b" in step(scheduler)) == joins


def test_one_alone_is_let_in_whatever_is_predicted() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4, batch_scheduler_policy="future_peak")
    request = make_request("a", 8, max_tokens=9)
    assert scheduler.fits(request)
    scheduler.add(request)
    assert step(scheduler) == {"a": 8}


def test_what_was_learned_lets_more_in() -> None:
    scheduler = make_scheduler(num_blocks=10, block_size=4, batch_scheduler_policy="future_peak", budget=64)
    for number in range(10):
        scheduler.add(make_request(f"{number}", [1], max_tokens=30, stop_token_ids=[7]))
        step(scheduler)
    for name in "abc":
        scheduler.add(make_request(name, 4, max_tokens=30, stop_token_ids=[7]))
    assert step(scheduler).keys() == {"a", "b", "c"}


@pytest.mark.parametrize(("policy", "admitted"), [("max_utilization", 4), ("guaranteed_no_evict", 2)])
def test_the_worst_case_is_reserved_or_not(policy: str, admitted: int) -> None:
    scheduler = make_scheduler(num_blocks=10, block_size=4, batch_scheduler_policy=policy)
    for name in "abcde":
        scheduler.add(make_request(name, 4, max_tokens=17))
    assert len(step(scheduler)) == admitted


def test_a_reservation_ends_with_its_request() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4, batch_scheduler_policy="guaranteed_no_evict")
    for name, most in (("a", 2), ("b", 5), ("c", 5)):
        scheduler.add(make_request(name, 4, max_tokens=most))
    assert step(scheduler).keys() == {"a", "b"}
    assert step(scheduler).keys() == {"a", "b"}
    assert step(scheduler).keys() == {"b", "c"}


def test_whoever_joins_leaves_the_others_the_blocks_for_their_next_tokens() -> None:
    """`a` and `b` need a block each within 8 tokens, unless they end before."""
    for max_tokens, joins in ((9, False), (5, True)):
        scheduler = make_scheduler(num_blocks=4, block_size=8)
        for name in "ab":
            scheduler.add(make_request(name, 4, max_tokens=max_tokens))
        assert step(scheduler).keys() == {"a", "b"}
        scheduler.add(make_request("c", 4))
        assert ("c" in step(scheduler)) == joins


def test_one_alone_may_fill_the_whole_cache() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    scheduler.add(make_request("a", 16, max_tokens=1))
    scheduler.add(make_request("b", 4, max_tokens=1))
    assert step(scheduler) == {"a": 16}
    assert step(scheduler) == {"b": 4}


def test_fewer_requests_are_preempted_and_fewer_tokens_computed_again() -> None:
    """40 requests of 64 and 160 tokens in a cache of 1,600: without preemption, 8,920 tokens are computed."""
    computed, preemptions = {}, {}
    for next_tokens in (0, MaxUtilization.next_tokens):
        scheduler = make_scheduler(100, 16, max_num_seqs=64, budget=512, prefix_caching=False, next_tokens=next_tokens)
        for number in range(40):
            scheduler.add(make_request(f"{number}", 64, max_tokens=160))
        computed[next_tokens] = 0
        while scheduler.running or scheduler.waiting:
            computed[next_tokens] += sum(step(scheduler).values())
        preemptions[next_tokens] = scheduler.preemptor.num_preemptions
    assert min(computed.values()) >= 8920
    assert computed[8] < 0.9 * computed[0]
    assert preemptions[8] < 0.6 * preemptions[0]
