"""Requests of all kinds at once, beam searches among them, under any settings, while steps fail and are broken off."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from inflight import RequestOptions
from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler_config import (
    ADMISSION_POLICIES,
    BATCHING_STRATEGIES,
    LENGTH_PREDICTORS,
    PREEMPTION_MODES,
    SCHEDULING_POLICIES,
    TOKEN_BUDGETS,
)
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_drafter import FakeDrafter
from tests.unit.fake_model import VOCABULARY, FakeModel, ForcingGrammar, expected_output
from tests.unit.test_beam_search import expected_beams
from tests.unit.test_scheduler_machine import CLASSES, LEVELS, ONE_LEVEL, STEMS


def any_settings(draw: Random) -> dict[str, Any]:
    policy = draw.choice([*SCHEDULING_POLICIES, "classes"])
    settings = {
        "num_blocks": draw.randint(12, 24),
        "block_size": draw.choice([3, 4]),
        "max_num_seqs": draw.choice([3, 4, 8]),
        "budget": draw.choice([3, 8, 64]),
        "prefix_caching": draw.random() < 0.8,
        "policies": {"priority": LEVELS, "fair": ONE_LEVEL}.get(policy) or draw.choice([LEVELS, ONE_LEVEL]),
        "scheduling_policy": policy,
        "request_classes": draw.choice(CLASSES) if policy == "classes" else {},
        "batching_strategy": draw.choice(["continuous", *BATCHING_STRATEGIES]),
        "length_predictor": draw.choice(LENGTH_PREDICTORS),
        "batch_scheduler_policy": draw.choice(ADMISSION_POLICIES),
        "preemption_mode": draw.choice(PREEMPTION_MODES),
        "swap_space_tokens": draw.choice([8, 40]),
        "token_budget": draw.choice(TOKEN_BUDGETS),
        "enable_chunked_prefill": draw.random() < 0.7,
        "target_itl_ms": 2.0,
        "batch_wait_ms": 2.0,
        "price_per_hour": 1.0,
        "drafter": FakeDrafter(draw.choice(FakeDrafter.KINDS)) if draw.random() < 0.5 else None,
    }
    if settings["drafter"]:
        settings["speculative_config"] = {"method": "ngram", "num_speculative_tokens": draw.choice([1, 5])}
    if any(each.get("leftover") for each in settings["request_classes"].values()):
        settings |= {"batching_strategy": "continuous", "enable_chunked_prefill": True}
    if settings["batching_strategy"] == "continuous":
        settings["auto_tune"] = draw.choice(["", "goodput", "throughput", "cost"])
    return settings


class Load:
    """Everything that was added, and what has become of it."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.scheduler = make_scheduler(**any_settings(draw))
        self.model = FakeModel(self.scheduler.tables.block_size)
        self.live: dict[str, Request] = {}
        self.now = 0.0
        self.count = 0

    def add(self) -> None:
        draw, name = self.draw, f"r{self.count}"
        self.count += 1
        prompt = [*draw.choice(STEMS)[: draw.randint(0, 14)], draw.randrange(VOCABULARY)]
        limits: dict[str, Any] = {"max_tokens": draw.randint(1, 12), "stop_token_ids": draw.choice([[], [3]])}
        kind = draw.choice(["plain", "guided", "beams", "scores", "last"])
        if kind == "beams":
            limits["beam_width"] = draw.randint(2, 3)
        request = make_request(
            name,
            prompt,
            **limits,
            arrival=self.now,
            grammar=ForcingGrammar(prompt) if kind == "guided" else None,
            prompt_logprobs=0 if kind == "scores" else None,
            pooling=kind if kind == "last" else None,
            options=RequestOptions(
                tenant=draw.choice("ab"),
                priority=draw.randint(0, 4),
                deadline_ms=draw.choice([None, None, None, 30]),
                cache_salt=draw.choice(["", "s"]),
                request_class=draw.choice(["", "night"]),
            ),
        )
        self.scheduler.policies.apply(request)
        if self.scheduler.fits(request):
            self.live[name] = request
            self.scheduler.read_prompt(request)
            self.scheduler.add(request)

    def cancel(self) -> None:
        if self.live:
            name = self.draw.choice(list(self.live))
            assert self.scheduler.remove(name) is self.live.pop(name)

    def _plan(self) -> StepPlan | None:
        for request, _, _ in self.scheduler.expire(self.now):
            assert self.live.pop(request.request_id) is request
        plan = self.scheduler.schedule(self.now)
        if plan.scheduled:
            assert plan.num_tokens <= self.scheduler.config.max_num_batched_tokens
            assert len(self.scheduler.running) <= self.scheduler.config.max_num_seqs
            return plan
        assert plan.swapped_out == plan.forked == plan.swapped_in == plan.preempted == ()
        wakes_at = self.scheduler.wakes_at
        assert not self.live or (wakes_at is not None and wakes_at > self.now)
        self.now = wakes_at if self.live and wakes_at is not None else self.now
        return None

    def step(self) -> None:
        if (plan := self._plan()) is None:
            return
        results = self.model.run(plan)
        seconds = 1e-4 + 2e-5 * plan.num_tokens
        self.now += seconds
        self.scheduler.observe(plan, seconds)
        for outcome in self.scheduler.commit(plan, results, self.now):
            request, reason = outcome.request, outcome.finish_reason
            if reason is not None:
                assert self.live.pop(request.request_id) is request, "it ends twice"
                if request.beams is not None:
                    assert request.beams.best(reason) == expected_beams(request)
                else:
                    assert (request.output_ids, reason) == expected_output(request)

    def fail(self) -> None:
        if (plan := self._plan()) is not None:
            self.model.break_down(plan)
            for request in self.scheduler.fail_step(plan):
                assert self.live.pop(request.request_id) is request

    def break_off(self) -> None:
        if (plan := self._plan()) is not None:
            self.model.break_down(plan)
            self.scheduler.break_off(plan)

    def run_out_of_memory(self) -> None:
        # A smaller budget would have no room for the beams.
        if self.scheduler.limit.tokens >= 6 and (plan := self._plan()) is not None:
            self.model.run_out_of_memory(plan)
            if not self.scheduler.shrink_after_oom(plan):
                for request in self.scheduler.fail_step(plan):
                    assert self.live.pop(request.request_id) is request

    def check(self) -> None:
        scheduler, tables = self.scheduler, self.scheduler.tables
        members = [each for request in self.live.values() for each in request.members]
        held = Counter(block for each in members for block in each.blocks)
        assert [held[block] for block in range(tables.pool.num_blocks)] == tables.pool._references
        waiting, running = list(scheduler.waiting), list(scheduler.running.values())
        here = [request.request_id for request in waiting] + list({request.leader.request_id for request in running})
        assert sorted(here) == sorted(self.live), "each waits or runs"
        assert scheduler.waiting.num_tokens == sum(len(request.token_ids) for request in waiting)
        assert len(scheduler._deadlines) == sum(request.deadline is not None for request in self.live.values())


@pytest.mark.parametrize("seed", range(8))
def test_requests_of_all_kinds_get_to_their_ends_beside_each_other(seed: int) -> None:
    for part in range(25):
        draw = Random(25 * seed + part)
        load = Load(draw)
        for _ in range(60):
            draw.choice(
                [load.step] * 8 + [load.add] * 4 + [load.cancel, load.fail, load.break_off, load.run_out_of_memory]
            )()
            load.check()
        for _ in range(2000):
            if load.live:
                load.step()
        assert not load.live, f"part {part}: some request starves"
        load.check()
        assert load.scheduler.tables.pool.num_used == load.scheduler.tables.num_promised == 0
