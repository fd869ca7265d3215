"""Beam searches find what they would find alone, whatever else runs, and leave no block behind."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight import InvalidRequest, SamplingParams, sampling_params
from inflight.beam_search.search import BeamSearch, Hypothesis
from inflight.kv_cache.cache_salt import CacheSalt
from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler_config import ADMISSION_POLICIES, BATCHING_STRATEGIES, SCHEDULING_POLICIES
from inflight.structured_outputs import StructuredOutputs
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_model import VOCABULARY, FakeModel, expected_output, likeliest

CHOICES = {
    "block_size": st.sampled_from([1, 2, 3, 4, 16]),
    "budget": st.sampled_from([3, 8, 20, 64]),
    "max_num_seqs": st.sampled_from([3, 4, 8]),
    "prefix_caching": st.booleans(),
    "batching_strategy": st.sampled_from([BATCHING_STRATEGIES[0], *BATCHING_STRATEGIES]),
    "scheduling_policy": st.sampled_from([name for name in SCHEDULING_POLICIES if name not in ("priority", "classes")]),
    "batch_scheduler_policy": st.sampled_from(ADMISSION_POLICIES),
    "preemption_mode": st.sampled_from(["swap", "recompute"]),
    "swap_space_tokens": st.just(40),
    "enable_chunked_prefill": st.booleans(),
}
REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.builds(lambda length, last: [3] * length + [last], st.integers(0, 9), st.integers(0, 6)),
        "max_tokens": st.integers(4, 16),
        "min_tokens": st.sampled_from([0, 4]),
        "stop_token_ids": st.lists(st.integers(0, VOCABULARY - 1), max_size=1),
        "beam_width": st.sampled_from([1, 2, 3]),
        "tenant": st.sampled_from(["", "a"]),
    }
)
EVENTS = st.lists(st.sampled_from(["step"] * 12 + ["add", "cancel", "fail", "lack memory"]), min_size=20, max_size=80)


def expected_beams(request: Request) -> list[Hypothesis]:
    """What a search finds that has no blocks and no neighbours."""
    search = BeamSearch(request.params, max_tokens=request.max_tokens, stop_token_ids=request.stop_token_ids)
    outputs: list[list[int]] = [[]]
    while True:
        found = [likeliest([*request.prompt_ids, *output], search.num_candidates) for output in outputs]
        steps = search.advance(found, outputs)
        if steps is None:
            return search.best(outputs, "length")
        outputs = [[*outputs[step.parent], step.token] for step in steps]


class World:
    """A scheduler with a model, and the requests that have not ended."""

    def __init__(self, sizes: dict[str, Any], cache_tokens: int) -> None:
        self.scheduler = make_scheduler(**sizes, num_blocks=-(-cache_tokens // sizes["block_size"]))
        self.model = FakeModel(sizes["block_size"])
        self.live: dict[str, Request] = {}
        self.added = 0
        self.now = 0.0

    def add(self, fields: dict[str, Any]) -> None:
        fields = {**fields, "min_tokens": min(fields["min_tokens"], fields["max_tokens"])}
        request = make_request(f"r{self.added}", **fields)
        self.added += 1
        if self.scheduler.fits(request):
            self.live[request.request_id] = request
            self.scheduler.add(request)

    def cancel(self) -> None:
        if self.live:
            name = next(iter(self.live))
            assert self.scheduler.remove(name) is self.live.pop(name)

    def plan(self) -> StepPlan:
        plan = self.scheduler.schedule(self.now)
        beams = Counter(share.request.leader for share in plan.scheduled)
        assert all(count <= request.params.beam_width for request, count in beams.items())
        assert len(self.scheduler.running) <= self.scheduler.config.max_num_seqs
        return plan

    def step(self) -> None:
        plan = self.plan()
        if plan.scheduled:
            results = self.model.run(plan)
            self.now += 0.001
            self.scheduler.observe(plan, 0.001)
            for request, _, reason, *_ in self.scheduler.commit(plan, results, self.now):
                if reason is not None:
                    assert self.live.pop(request.request_id) is request
                    self.check_output(request, reason)
        self.check_blocks()

    def check_output(self, request: Request, reason: str) -> None:
        if request.beams is None:
            assert (request.output_ids, reason) == expected_output(request)
        else:
            found = request.beams.best(reason)
            assert found == expected_beams(request)
            assert reason == found[0].finish_reason

    def fail(self) -> None:
        plan = self.plan()
        self.model.break_down(plan)
        for request in self.scheduler.fail_step(plan):
            del self.live[request.request_id]
        self.check_blocks()

    def lack_memory(self) -> None:
        plan = self.plan()
        if plan.scheduled:
            self.model.run_out_of_memory(plan)
            self.scheduler.shrink_after_oom(plan)
        self.check_blocks()

    def check_blocks(self) -> None:
        tables, running = self.scheduler.tables, self.scheduler.running
        members = [each for request in self.live.values() for each in request.members]
        held = Counter(block for request in members for block in request.blocks)
        assert [held[block] for block in range(tables.pool.num_blocks)] == tables.pool._references
        assert all(request.request_id in running for request in members if request.blocks)
        assert running.keys() <= {request.request_id for request in members}
        worst = sum(
            tables.blocks_for(len(request.prompt_ids) + request.max_tokens - 1)
            - len(request.blocks)
            + request.num_reserved
            for request in running.values()
            if request.blocks
        )
        assert tables.num_promised == worst
        for request in members:
            names: list[bytes] = []
            known = len(request.block_hashes) * tables.block_size
            tables.prefixes.hasher.extend(names, request.token_ids, known, CacheSalt.of(request, per_tenant=False))
            assert request.block_hashes == names
        assert tables.pool.num_free >= worst or tables.pool.num_used == 0 or not self.never_evicts

    @property
    def never_evicts(self) -> bool:
        return self.scheduler.config.batch_scheduler_policy == "guaranteed_no_evict"

    def finish(self) -> None:
        for _ in range(4000):
            if not self.live:
                return
            self.step()
            if (wakes_at := self.scheduler.wakes_at) is not None:
                self.now = max(self.now, wakes_at)
        assert not self.live, "some request starves"


@settings(settings.get_profile("unit"), max_examples=300)
@given(
    sizes=st.fixed_dictionaries(CHOICES),
    cache_tokens=st.integers(20, 60),
    requests=st.lists(REQUESTS, min_size=5, max_size=10),
    events=EVENTS,
)
def test_beams_are_those_of_a_search_alone(
    sizes: dict[str, Any], cache_tokens: int, requests: list[dict[str, Any]], events: list[str]
) -> None:
    world, waiting = World(sizes, cache_tokens), list(requests)
    for _ in range(4):
        if waiting:
            world.add(waiting.pop())
    for event in events:
        if event == "add":
            if waiting:
                world.add(waiting.pop())
        else:
            getattr(world, event.replace(" ", "_"))()
    for fields in waiting:
        world.add(fields)
    world.finish()
    tables = world.scheduler.tables
    assert (tables.pool.num_used, tables.num_promised, world.scheduler.running) == (0, 0, {})


@pytest.mark.parametrize("steps", [2, 3, 4, 5])
def test_beams_whose_blocks_were_not_copied_in_a_failed_step_begin_again(steps: int) -> None:
    """Where prompts are not cut, a step may hold a prompt alone, and the copies of blocks of the next beams."""
    sizes = {"block_size": 4, "budget": 32, "max_num_seqs": 8, "enable_chunked_prefill": False}
    for last in range(VOCABULARY):
        world = World(sizes, 400)
        request = {"max_tokens": 10, "min_tokens": 0, "stop_token_ids": []}
        world.add({"prompt": [3, 3, last, 1, 2], "beam_width": 3, **request})
        for _ in range(steps):
            world.step()
        world.add({"prompt": [6] * 9, "beam_width": 1, **request})
        world.fail()
        assert not any(name == "r1" for name in world.live)
        world.finish()


def search(width: int, **params: Any) -> BeamSearch:
    max_tokens = params.pop("max_tokens", 9)
    sampling = SamplingParams(beam_width=width, **params)
    return BeamSearch(sampling, max_tokens=max_tokens, stop_token_ids=[0])


def test_beams_compete_by_the_sum_of_their_log_probabilities() -> None:
    beams = search(2)
    steps = beams.advance([{1: -0.1, 2: -0.2, 3: -5.0}], [[]])
    assert steps is not None
    assert [(step.parent, step.token) for step in steps] == [(0, 1), (0, 2)]
    steps = beams.advance([{4: -3.0, 5: -4.0}, {6: -0.5, 7: -2.0}], [[1], [2]])
    assert steps is not None
    assert [(step.parent, step.token) for step in steps] == [(1, 6), (1, 7)]


def test_an_end_outside_of_the_best_is_no_output() -> None:
    beams = search(2)
    beams.advance([{1: -0.1, 2: -0.2, 0: -0.3}], [[]])
    assert beams.finished == []
    beams.advance([{0: -0.1, 3: -0.2}, {0: -9.0, 4: -0.3}], [[1], [2]])
    assert [found.token_ids for found in beams.finished] == [(1, 0)]
    assert beams.finished[0].finish_reason == "stop"
    assert beams.finished[0].logprob == pytest.approx(-0.2)
    assert beams.finished[0].score == pytest.approx(-0.1)


def test_nothing_ends_before_min_tokens() -> None:
    beams = search(2, min_tokens=1)
    steps = beams.advance([{0: -0.1, 1: -1.0, 2: -2.0}], [[]])
    assert steps is not None
    assert [step.token for step in steps] == [1, 2]


@given(
    st.lists(st.lists(st.sampled_from([-0.5, -1.0, -1.5, -4.0]), min_size=12, max_size=12), min_size=10, max_size=10),
    st.integers(2, 3),
    st.sets(st.integers(0, 11), max_size=5),
    st.integers(0, 2),
)
def test_other_tokens_of_a_beam_than_its_candidates_change_nothing(
    logprobs: list[list[float]], width: int, stops: set[int], min_tokens: int
) -> None:
    """Also where many are equally likely. `logprobs` has a row for each beam of each step."""
    params = SamplingParams(beam_width=width, min_tokens=min_tokens, early_stopping="never")
    few, every = (BeamSearch(params, max_tokens=4, stop_token_ids=stops) for _ in range(2))
    assert few.num_candidates == width + len(stops)
    rows = iter(logprobs)
    outputs: list[list[int]] = [[]]
    while True:
        ranked = [sorted(enumerate(next(rows)), key=lambda each: -each[1]) for _ in outputs]
        steps = every.advance([dict(row) for row in ranked], outputs)
        assert few.advance([dict(row[: few.num_candidates]) for row in ranked], outputs) == steps
        assert few.finished == every.finished
        if steps is None:
            return
        outputs = [[*outputs[step.parent], step.token] for step in steps]


def test_early_stopping_ends_with_enough_outputs() -> None:
    for early, ends in ((True, True), ("never", False)):
        beams = search(2, early_stopping=early, length_penalty=2.0)
        beams.advance([{1: -0.1, 2: -0.2}], [[]])
        steps = beams.advance([{0: -0.1, 3: -0.4}, {0: -0.05, 4: -0.5}], [[1], [2]])
        assert (steps is None) == ends


def test_a_search_that_is_cut_off_has_as_many_outputs_as_beams() -> None:
    beams = search(3)
    assert [found.token_ids for found in beams.best([[]], "deadline")] == [(), (), ()]
    beams.advance([{1: -0.1, 2: -0.2, 3: -0.3}], [[]])
    found = beams.best([[1], [2], [3]], "deadline")
    assert [(each.token_ids, each.finish_reason) for each in found] == [((n,), "deadline") for n in (1, 2, 3)]
    assert found[0].logprob == float(np.float32(-0.1))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"beam_width": 17}, "beam_width is 17; it must be at least 1 and at most 16"),
        ({"beam_width": 4, "seed": 1}, "seed is 1; it must be left out with beam_width 4"),
        ({"beam_width": 4, "temperature": 0.5}, "temperature is 0.5; it must be left out or 0 or 1"),
        ({"beam_width": 4, "logit_bias": {1: 2}}, "logit_bias is {1: 2}; it must be left out"),
        ({"beam_width": 4, "stop": "a"}, "stop is ('a',); it must be left out"),
        (
            {"beam_width": 4, "structured_outputs": StructuredOutputs(regex="a+")},
            "structured_outputs has regex; it must be left out with beam_width 4",
        ),
        ({"beam_width": 4, "presence_penalty": 1}, "presence_penalty is 1; it must be 0 with beam_width 4"),
        ({"length_penalty": 2.0}, "length_penalty is 2.0; it needs a beam_width of at least 2"),
        ({"early_stopping": "soon"}, "early_stopping is 'soon'; it must be true, false or \"never\""),
    ],
)
def test_what_a_beam_search_cannot_heed_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**params)
    assert message in str(caught.value)


def test_a_beam_search_heeds_each_parameter_or_may_refuse_it() -> None:
    """Otherwise a new parameter would be dropped without a word."""
    heeded = {"max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens"}
    own = {"beam_width", "length_penalty", "early_stopping"}
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    assert names == heeded | own | sampling_params._NEUTRAL_FOR_BEAMS.keys()
