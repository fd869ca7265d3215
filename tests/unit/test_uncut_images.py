"""Prompts whose images a step computes whole, under every scheduler, beside others, and with little memory."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from inflight.prompt_images import PromptImages
from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.policies.classes import Classes
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.scheduler_config import BATCHING_STRATEGIES, SCHEDULING_POLICIES, TOKEN_BUDGETS
from tests.unit.builders import commit, make_request, make_scheduler, shares
from tests.unit.fake_model import FakeModel, ForcingGrammar, expected_output

LONGEST = 6
"""Tokens of an image."""
IMAGE_TOKEN = 6
PARTS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, LONGEST), st.integers(0, 1)), max_size=3)
"""Text before an image, the image, and which one it is."""

SETTINGS: dict[str, Any] = {
    "block_size": st.sampled_from([1, 4, 16]),
    "num_blocks": st.sampled_from([4, 8]),
    "budget": st.sampled_from([LONGEST, 8, 20]),
    "max_num_seqs": st.sampled_from([1, 2, 4, 8]),
    "batching_strategy": st.sampled_from(["continuous", *BATCHING_STRATEGIES]),
    "scheduling_policy": st.sampled_from(["fcfs", *SCHEDULING_POLICIES]),
    "token_budget": st.sampled_from(TOKEN_BUDGETS),
    "target_itl_ms": st.sampled_from([0.05, 2.0]),
    "auto_tune": st.sampled_from(["", "", "goodput"]),
    "enable_chunked_prefill": st.booleans(),
    "max_num_partial_prefills": st.sampled_from([0, 1]),
    "long_prefill_token_threshold": st.sampled_from([0, 1, 4]),
    "preemption_mode": st.sampled_from(["swap", "recompute"]),
    "swap_space_tokens": st.just(80),
    "speculative_config": st.sampled_from([{}, {"method": "ngram", "prompt_lookup_min": 1}]),
}
CLASSES = {"chat": {"target_ttft_ms": 20.0}, "night": {"tenants": ["a"], "leftover": True, "min_share": 0.25}}


def go_together(sizes: dict[str, Any]) -> dict[str, Any]:
    """The nearest settings that a scheduler takes."""
    sizes = dict(sizes)
    sizes["num_blocks"] *= 16 // sizes["block_size"]
    if sizes["scheduling_policy"] == "priority":
        sizes["policies"] = QueuePolicies(priority_levels=3, default_priority_level=2)
    if sizes["scheduling_policy"] == "classes":
        sizes |= {"request_classes": CLASSES, "batching_strategy": "continuous", "enable_chunked_prefill": True}
    if sizes["auto_tune"]:
        sizes |= {"batching_strategy": "continuous", "enable_chunked_prefill": True, "token_budget": "adaptive"}
    return sizes


def with_images(request: Request, parts: list[tuple[int, int, int]]) -> Request:
    """Place images in a prompt of text, see `PARTS`. They replace tokens."""
    places, rows, at = [], [], 0
    for text, length, digest in parts:
        begin = at + text
        at = begin + length
        if at >= len(request.prompt_ids):
            break
        places.append((begin, at, bytes([digest])))
        rows += range(begin, at)
    for row in rows:
        request.prompt_ids[row] = request.token_ids[row] = IMAGE_TOKEN
    if places:
        request.images = PromptImages(tuple(places), np.array(rows), features=None, sees_ahead=True)
    return request


class ImageMachine(RuleBasedStateMachine):
    @initialize(sizes=st.fixed_dictionaries(SETTINGS).map(go_together))
    def begin(self, sizes: dict[str, Any]) -> None:
        self.budget = sizes["budget"]
        self.scheduler = make_scheduler(**sizes)
        self.model = FakeModel(sizes["block_size"])
        self.live: dict[str, Request] = {}
        self.now, self.count = 0.0, 0

    @rule(
        prompts=st.lists(st.tuples(st.integers(1, 24), PARTS), min_size=1, max_size=6),
        max_tokens=st.integers(1, 12),
        priority=st.integers(0, 3),
        tenant=st.sampled_from(["", "a", "b"]),
        guided=st.booleans(),
    )
    def add(self, prompts: list[tuple[int, Any]], max_tokens: int, priority: int, tenant: str, guided: bool) -> None:
        for length, parts in prompts:
            self.count += 1
            prompt = [(3 * place) % 5 for place in range(length)]
            request = make_request(
                f"{self.count}",
                prompt,
                max_tokens=max_tokens,
                arrival=self.now,
                tenant=tenant,
                priority=self.scheduler.policies.level(min(priority, self.scheduler.policies.priority_levels)),
            )
            with_images(request, parts)
            if guided:
                request.grammar = ForcingGrammar(request.prompt_ids)  # type: ignore[assignment]
            self.scheduler.policy.classify(request)
            if self.scheduler.fits(request):
                self.scheduler.add(request)
                self.live[request.request_id] = request

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.one_step()

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 20))
    def cancel(self, number: int) -> None:
        name = list(self.live)[number % len(self.live)]
        assert self.scheduler.remove(name) is self.live.pop(name)

    @precondition(lambda self: self.live)
    @rule()
    def run_out_of_memory(self) -> None:
        plan = self.plan()
        if not plan.scheduled:
            return
        self.model.run_out_of_memory(plan)
        if not self.scheduler.shrink_after_oom(plan):
            (request,) = self.scheduler.fail_step(plan)
            del self.live[request.request_id]

    def plan(self) -> StepPlan:
        plan = self.scheduler.schedule(self.now)
        assert plan.num_tokens <= self.budget
        for each in plan.scheduled:
            images = each.request.images
            parts = [] if images is None else images.uncut
            assert not any(begin < each.end < after for begin, after in parts), "an image is cut"
        return plan

    def one_step(self) -> None:
        plan = self.plan()
        if not plan.scheduled:
            wakes_at = self.scheduler.wakes_at
            assert not self.scheduler.running or wakes_at is not None
            self.now = max(self.now, wakes_at or 0.0)
            return
        results = self.model.run(plan)
        seconds = 1e-4 + 2e-5 * plan.num_tokens
        self.scheduler.observe(plan, seconds)
        self.now += seconds
        for outcome in self.scheduler.commit(plan, results, self.now):
            if outcome.finish_reason is not None:
                request = self.live.pop(outcome.request.request_id)
                assert (request.output_ids, outcome.finish_reason) == expected_output(request)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        bound = 4 * sum(request.max_cached_tokens for request in self.live.values()) * (len(self.live) + 1)
        for _ in range(bound):
            if not self.live:
                break
            self.one_step()
        assert not self.live, "some request starves"
        assert self.scheduler.tables.pool.num_used == 0


TestImages = ImageMachine.TestCase
TestImages.settings = settings(settings.get_profile("unit"), max_examples=150, stateful_step_count=30)


@given(st.integers(1, 30), PARTS, st.integers(0, 29), st.integers(1, 30))
def test_where_chunks_end(length: int, parts: list[tuple[int, int, int]], first: int, tokens: int) -> None:
    images = with_images(make_request("a", length), parts).images
    if images is None or first >= length:
        return
    ends = [end for end in range(first + 1, length + 1) if not any(b < end < a for b, a, _ in images.places)]
    within = [end for end in ends if end <= first + tokens]
    assert images.next_end(first) == ends[0]
    if first + tokens <= length:
        assert images.last_end(first, first + tokens) == (within[-1] if within else first)


def prompt_with_image(name: str, text: int, image: int) -> Request:
    return with_images(make_request(name, text + image + 3), [(text, image, 0)])


def test_an_image_waits_for_a_step_with_room_and_holds_back_those_that_would_take_it() -> None:
    scheduler = make_scheduler(budget=8, max_num_seqs=8)
    for name in "abcd":
        scheduler.add(make_request(name, 2, max_tokens=6))
    scheduler.commit(plan := scheduler.schedule(0.0), FakeModel(4).run(plan), 0.0)
    scheduler.add(prompt_with_image("image", 2, 6))
    scheduler.add(make_request("later", 2))
    plan = scheduler.schedule(0.0)
    assert shares(plan) == {"a": 1, "b": 1, "c": 1, "d": 1, "image": 2, "later": 2}
    commit(scheduler, plan, [1] * len(plan.sampling))
    scheduler.add(make_request("newcomer", 2))
    while "image" not in (planned := shares(plan := scheduler.schedule(0.0))):
        assert "newcomer" not in planned
        commit(scheduler, plan, [1] * len(plan.sampling))
    assert planned["image"] >= 6


def test_an_image_may_take_longer_than_its_step_should() -> None:
    scheduler = make_scheduler(budget=64, token_budget="adaptive", target_itl_ms=0.2)
    model = FakeModel(4)
    for _ in range(200):
        request = make_request("first", 40, max_tokens=2)
        scheduler.add(request)
        while scheduler.running or len(scheduler.waiting):
            plan = scheduler.schedule(0.0)
            results = model.run(plan)
            scheduler.observe(plan, 1e-4 * plan.num_tokens)
            scheduler.commit(plan, results, 0.0)
    scheduler.add(make_request("decodes", 4, max_tokens=9))
    plan = scheduler.schedule(0.0)
    scheduler.commit(plan, model.run(plan), 0.0)
    scheduler.add(prompt_with_image("image", 0, 40))
    assert shares(scheduler.schedule(0.0)) == {"decodes": 1, "image": 40}


def test_an_image_may_have_what_the_tuner_keeps_from_text() -> None:
    scheduler = make_scheduler(budget=128, auto_tune="throughput")
    assert scheduler.tuner is not None
    scheduler.tuner.token_budget = 64
    scheduler.add(make_request("decodes", 4))
    commit(scheduler, scheduler.schedule(0.0), [1])
    scheduler.add(prompt_with_image("image", 0, 100))
    scheduler.add(make_request("text", 100))
    assert shares(scheduler.schedule(0.0)) == {"decodes": 1, "image": 100}


def test_an_image_among_leftover_work_has_its_share_beside_a_prompt_without_end() -> None:
    scheduler = make_scheduler(
        num_blocks=1000, budget=8, max_num_seqs=4, scheduling_policy="classes", request_classes=CLASSES
    )
    night, chat = prompt_with_image("night", 0, LONGEST), make_request("chat", 3000)
    night.options = RequestOptions(tenant="a")
    for request in (night, chat):
        scheduler.policy.classify(request)
        scheduler.add(request)
    for _ in range(20):
        plan = scheduler.schedule(0.0)
        scheduler.observe(plan, 1e-4 * plan.num_tokens)
        commit(scheduler, plan, [1] * len(plan.sampling))
    assert len(night.output_ids) == night.max_tokens
    assert chat.num_computed >= 0.5 * 20 * 8


def test_an_image_among_leftover_work_holds_up_nobody_while_decodes_leave_it_no_room() -> None:
    scheduler = make_scheduler(
        num_blocks=2000, budget=8, max_num_seqs=8, scheduling_policy="classes", request_classes=CLASSES
    )

    def add(request: Request) -> Request:
        scheduler.policy.classify(request)
        scheduler.add(request)
        return request

    def steps(count: int) -> None:
        for _ in range(count):
            plan = scheduler.schedule(0.0)
            scheduler.observe(plan, 1e-4 * plan.num_tokens)
            commit(scheduler, plan, [1] * len(plan.sampling))

    for name in "abc":
        add(make_request(name, 2, max_tokens=200))
    steps(3)
    night = prompt_with_image("night", 2, LONGEST)
    night.options = RequestOptions(tenant="a")
    add(night)
    steps(3)
    chat = add(make_request("chat", 3000))
    steps(100)
    assert chat.num_computed >= 0.9 * 100 * (8 - 3)
    for name in "abc":
        scheduler.remove(name)
    steps(10)
    assert night.num_computed > LONGEST or night.output_ids


def leftover(request: Request, scheduler: Scheduler) -> Request:
    request.options = RequestOptions(tenant="a")
    scheduler.policy.classify(request)
    return request


def test_an_image_among_leftover_work_that_cannot_join_takes_nothing_from_others() -> None:
    scheduler = make_scheduler(
        num_blocks=200, budget=LONGEST, max_num_seqs=1, scheduling_policy="classes", request_classes=CLASSES
    )
    scheduler.add(chat := make_request("chat", 100, max_tokens=1))
    for _ in range(2):
        commit(scheduler, scheduler.schedule(0.0), [])
    scheduler.add(leftover(prompt_with_image("night", 0, LONGEST), scheduler))
    for _ in range(14):
        plan = scheduler.schedule(0.0)
        assert shares(plan) == {"chat": LONGEST}
        commit(scheduler, plan, [])
    assert chat.num_uncomputed == 4


def test_an_image_among_leftover_work_may_fill_a_step_that_is_tuned() -> None:
    scheduler = make_scheduler(
        budget=64,
        scheduling_policy="classes",
        request_classes=CLASSES,
        auto_tune="goodput",
        target_itl_ms=50.0,
    )
    assert isinstance(scheduler.policy, Classes)
    scheduler.policy.credit["night"] = 10.0
    scheduler.add(leftover(prompt_with_image("night", 0, 64), scheduler))
    scheduler.add(make_request("chat", 20))
    assert shares(scheduler.schedule(0.0)) == {"night": 64}


def test_without_memory_for_an_image_its_request_alone_fails() -> None:
    scheduler = make_scheduler(budget=32)
    scheduler.add(make_request("decodes", 4, max_tokens=9))
    commit(scheduler, scheduler.schedule(0.0), [1])
    scheduler.add(prompt_with_image("image", 2, 20))
    for _ in range(20):
        plan = scheduler.schedule(0.0)
        if any(each.num_tokens > LONGEST for each in plan.scheduled):
            if not scheduler.shrink_after_oom(plan):
                assert [request.request_id for request in scheduler.fail_step(plan)] == ["image"]
                break
        else:
            commit(scheduler, plan, [1] * len(plan.sampling))
    else:
        raise AssertionError("the step is repeated for ever")
    assert not scheduler.running
