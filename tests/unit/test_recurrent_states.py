"""Where recurrent states and their snapshots are planned to be."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.recurrent_states import RecurrentStates, StatePlan
from inflight.request import Request
from inflight.sampling_params import SamplingParams

BLOCK, SEQUENCES = 4, 4


class World:
    """Requests whose states are the tokens that were computed. Each slot holds what was written there.

    Unless output can be reused, the states of output are other ones than those of a prompt with the same tokens.
    """

    def __init__(self, num_snapshots: int, *, reuses_output: bool = True) -> None:
        self.states = RecurrentStates(SEQUENCES, num_snapshots, BLOCK, reuses_output=reuses_output)
        self.tables = BlockTables(BlockPool(64), BLOCK, prefix_caching=num_snapshots > 0, states=self.states)
        self.slots: dict[int, tuple[int, ...]] = {}
        self._count = 0

    def admit(self, tokens: Sequence[int], max_tokens: int = 64) -> Request:
        self._count += 1
        request = Request(str(self._count), list(tokens), SamplingParams(), max_tokens=max_tokens, seed=0)
        self.tables.admit(request, self.tables.prefixes.lookup(request))
        return request

    def state(self, request: Request, end: int) -> tuple[int, ...]:
        output = 0 if self.states.reuses_output else 1000
        return tuple(t if i < len(request.prompt_ids) else output + t for i, t in enumerate(request.token_ids[:end]))

    def plan(self, work: dict[Request, int]) -> StatePlan:
        plan = self.tables.plan_states(list(work), [request.num_computed + count for request, count in work.items()])
        assert plan is not None
        return plan

    def fail(self, work: dict[Request, int]) -> set[int]:
        """Begin to compute so many tokens of each request. Return the slots whose states are lost."""
        plan = self.plan(work)
        lost = self.states.abandon(plan)
        for slot in (*lost, *(snapshot.slot for snapshot in plan.snapshots)):
            self.slots[slot] = (-1,)
        return lost

    def step(self, work: dict[Request, int]) -> StatePlan:
        """Compute so many tokens of each request, and check what the states were before."""
        plan, requests = self.plan(work), list(work)
        ends = [request.num_computed + count for request, count in work.items()]
        read = [self.slots[source] for source, _ in plan.copies]
        self.slots.update(zip([target for _, target in plan.copies], read, strict=True))
        for row, (request, end) in enumerate(zip(requests, ends, strict=True)):
            at = request.num_computed
            if at:
                assert self.slots[request.slot] == self.state(request, at)
            for snapshot in (each for each in plan.snapshots if each.row == row):
                assert at < snapshot.end <= end
                self.slots[snapshot.slot] = self.state(request, snapshot.end)
            self.slots[request.slot] = self.state(request, end)
        for request, end in zip(requests, ends, strict=True):
            self.tables.commit(request, end - request.num_computed)
        self.states.commit(plan, requests, failed=())
        return plan

    def finish(self, request: Request) -> None:
        self.step({request: request.num_uncomputed})
        self.tables.release(request)


def test_a_chat_goes_on_from_its_last_prompt() -> None:
    world = World(8)
    prompt = list(range(10))
    first = world.admit(prompt)
    assert first.num_computed == 0
    world.finish(first)
    again = world.admit(prompt)
    assert again.num_computed == 8
    world.finish(again)
    assert world.admit([*prompt, 11, 12, 13]).num_computed == 8


def test_a_chat_goes_on_from_its_last_answer() -> None:
    world = World(8)
    request = world.admit(range(5))
    world.step({request: 5})
    for token in range(100, 112):
        request.token_ids.append(token)
        assert world.tables.grow(request)
        world.step({request: 1})
    world.tables.release(request)
    # One of the prompt, and the newest one of the answer.
    assert len(world.states._kept) == 2
    assert world.admit([*request.token_ids, 1, 2]).num_computed == 16


def test_only_prompts_are_reused_if_output_has_other_states() -> None:
    world = World(8, reuses_output=False)
    request = world.admit(range(9))
    world.step({request: 9})
    for token in range(100, 108):
        request.token_ids.append(token)
        assert world.tables.grow(request)
        world.step({request: 1})
    world.tables.release(request)
    known = list(request.token_ids)
    following = world.admit([*known, 1, 2])
    assert following.num_computed == 8
    # All of it is now a prompt in the cache. The first request, which begins again, has most of it as output.
    world.finish(following)
    world.tables.admit(request, world.tables.prefixes.lookup(request))
    assert request.num_computed == 8
    assert world.admit([*known, 1, 2]).num_computed == 16


def test_the_third_prompt_with_a_common_beginning_reuses_it() -> None:
    world = World(8)
    common = list(range(8))
    reused = []
    for number in range(3):
        request = world.admit([*common, *range(50 * number + 100, 50 * number + 106)])
        reused.append(request.num_computed)
        world.finish(request)
    assert reused == [0, 0, 8]


def test_a_request_waits_for_a_snapshot_that_will_be_made() -> None:
    world = World(8)
    prompt = list(range(10))
    first, second = world.admit(prompt), Request("b", prompt, SamplingParams(), max_tokens=1, seed=0)
    other = Request("c", [*prompt[:6], 77, 78, 79], SamplingParams(), max_tokens=1, seed=0)
    prefixes = world.tables.prefixes
    filling = prefixes.filled_by(first, 2)  # Its first chunk does not reach the snapshot.
    assert prefixes.is_filling(second, prefixes.lookup(second), filling)
    assert not prefixes.is_filling(other, prefixes.lookup(other), filling)


def test_without_prefix_caching_there_are_no_snapshots() -> None:
    world = World(0)
    for _ in range(2):
        request = world.admit(range(10))
        assert request.num_computed == 0
        assert world.step({request: 10}).snapshots == []
        world.tables.release(request)


def test_beams_begin_with_the_state_of_their_source() -> None:
    world = World(0)
    source = world.admit(range(6))
    world.step({source: 6})
    target = Request("beam", list(range(6)), SamplingParams(), max_tokens=8, seed=0)
    world.tables._fork(source, target)
    for request, token in ((source, 40), (target, 41)):
        request.token_ids.append(token)
    world.step({source: 1, target: 1})


def test_a_released_request_leaves_no_copy_behind() -> None:
    world = World(4)
    world.finish(world.admit(range(10)))
    request = world.admit(range(10))
    world.tables.release(request)
    assert world.step({world.admit(range(20, 30)): 3}).copies == ()


@pytest.mark.parametrize("reuses_output", [True, False])
@pytest.mark.parametrize("num_snapshots", [1, 3, 8])
@given(seed=st.integers(0, 10_000))
def test_states_are_those_of_the_computed_tokens_whatever_happens(
    num_snapshots: int, reuses_output: bool, seed: int
) -> None:
    rng = random.Random(seed)
    world, running, seen = World(num_snapshots, reuses_output=reuses_output), list[Request](), [[1]]
    for _ in range(60):
        if len(running) < SEQUENCES and rng.random() < 0.5:
            stem = rng.choice(seen)
            tokens = stem[: rng.randint(1, len(stem))] + [rng.randrange(3) for _ in range(rng.randint(0, 9))]
            running.append(world.admit(tokens[:40]))
        for request in [r for r in running if rng.random() < 0.1]:
            running.remove(request)
            seen.append(list(request.token_ids))
            world.tables.release(request)
        for request in running:
            if not request.num_uncomputed:
                request.token_ids.append(rng.randrange(3))
                assert world.tables.grow(request)
        work = {r: rng.randint(1, r.num_uncomputed) for r in running if rng.random() < 0.7}
        if rng.random() < 0.9:
            world.step(work)
            continue
        lost = world.fail(work)
        for request in [request for request in running if request.slot in lost]:
            running.remove(request)
            world.tables.release(request)
    for request in running:
        world.tables.release(request)
    free, kept = world.states._free, list(world.states._kept.values())
    assert sorted([*free, *kept]) == list(range(SEQUENCES, SEQUENCES + num_snapshots))
    assert world.states._of_output == {}
