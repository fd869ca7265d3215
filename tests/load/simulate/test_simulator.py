"""The simulator loses no request, is deterministic, and plans the same steps as the engine's own loop."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inflight.config import EngineConfig
from inflight.core import EngineCore
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler_config import ADMISSION_POLICIES, BATCHING_STRATEGIES
from inflight.scheduler.step_time import attention_pairs
from inflight.step_result import StepResult
from load_tests.arrivals import AllAtOnce
from load_tests.hand_out import PAUSE_AFTER_FAILURE
from load_tests.lengths import fixed
from load_tests.prompts import PlannedRequest
from load_tests.simulate.scripted_request import scripted_request
from load_tests.simulate.simulator import Simulation, simulate
from load_tests.simulate.step_cost import StepCost
from load_tests.simulate.sweep import sweep
from load_tests.simulate.virtual_engine import make_scheduler
from load_tests.slo import Slo
from load_tests.traffic import Arrival, Stream


@pytest.mark.parametrize("strategy", BATCHING_STRATEGIES)
@pytest.mark.parametrize("admission", ADMISSION_POLICIES)
def test_every_request_gets_its_tokens(
    arrivals: list[Arrival], config: EngineConfig, cost: StepCost, strategy: str, admission: str
) -> None:
    config = replace(config, batching_strategy=strategy, batch_scheduler_policy=admission, kv_cache_tokens=128)
    result = simulate(arrivals, config, cost)
    assert result.done.all()
    assert result.throughput * result.duration == pytest.approx(sum(a.output_tokens for a in arrivals))
    # Every token of a request comes after a gap, except the first.
    assert result.gap_counts.sum() == sum(a.output_tokens - 1 for a in arrivals)
    assert (result.arrival <= result.first_token).all()
    assert (result.first_token <= result.finish).all()


def test_a_workload_has_one_outcome(arrivals: list[Arrival], config: EngineConfig, cost: StepCost) -> None:
    first, second = (simulate(arrivals, config, cost) for _ in range(2))
    assert np.array_equal(first.finish, second.finish)
    assert np.array_equal(first.gaps, second.gaps)


def test_steps_cost_what_their_tokens_and_keys_cost(config: EngineConfig) -> None:
    cost = StepCost(per_step=1.0, per_token=0.1, per_cached_token=0.01, per_pair=0.001, per_sampled_token=0.5)
    result = simulate([Arrival(5.0, 4, 3, 3)], config, cost)
    prompt = 1 + 0.4 + 0.010 + 0.5
    assert result.first_token[0] == pytest.approx(5 + prompt)
    # Two more steps with one token each, which read 4 and 5 keys and also attend to themselves.
    decodes = 1 + 0.1 + 0.04 + 0.005 + 0.5, 1 + 0.1 + 0.05 + 0.006 + 0.5
    assert result.finish[0] == pytest.approx(5 + prompt + sum(decodes))
    assert (cost.decode_seconds(1, 4), cost.decode_seconds(1, 5)) == pytest.approx(decodes)
    assert cost.prompt_seconds(4) == pytest.approx(prompt)


def test_a_pause_shows_that_nothing_runs(config: EngineConfig) -> None:
    """Samples are some steps apart, and a pause may come in between."""
    result = simulate([Arrival(at, 4, 20, 20) for at in (0.0, 100.0)], config, StepCost(0.1, 0.0, 0.0))
    assert [sample.running for sample in result.samples] == [1, 0, 1]
    assert result.samples[1].at == result.finish[0]


@pytest.mark.parametrize("settings", [{}, {"max_queue_size": 2, "max_num_seqs": 1}], ids=["all served", "some refused"])
def test_in_a_closed_loop_a_user_has_one_request_at_a_time(
    config: EngineConfig, cost: StepCost, settings: dict[str, int]
) -> None:
    arrivals = Stream(AllAtOnce(), fixed(8), fixed(4)).make(20, 1)
    result = simulate(arrivals, replace(config, **settings), cost, users=3)  # type: ignore[arg-type]
    assert (result.arrival[:3] == 0.0).all()
    assert (np.diff(result.arrival) >= 0).all()
    ended = np.where(result.done, result.finish, result.arrival)
    for at in result.arrival:
        assert ((result.arrival <= at) & (ended > at)).sum() <= 3
    assert result.done.all() == (not settings)


def test_in_a_closed_loop_each_turn_of_a_chat_waits_for_the_answer_to_the_one_before(
    config: EngineConfig, cost: StepCost
) -> None:
    def turn(chat: int, number: int) -> PlannedRequest:
        tokens = 20 * number
        return PlannedRequest(0.0, tokens, 8, 8, kind="chat", prefix=chat, prefix_tokens=tokens)

    # Without waiting, three users would send three turns of the first chat at once.
    requests = [turn(chat, number) for chat in range(4) for number in range(1, 5)]
    result = simulate(requests, config, cost, users=3)
    assert result.done.all()
    assert (np.diff(result.arrival) >= 0).all()
    for chat in range(4):
        own = [place for place, request in enumerate(result.arrivals) if request.prefix == chat]
        assert result.prompt[own].tolist() == [20, 40, 60, 80]
        assert (result.arrival[own[1:]] > result.finish[own[:-1]]).all()
    assert [request.prefix for request in result.arrivals[:3]] == [0, 1, 2]


def test_a_refused_user_pauses_like_those_of_the_load_generator(config: EngineConfig, cost: StepCost) -> None:
    arrivals = Stream(AllAtOnce(), fixed(8), fixed(4)).make(200, 1)
    result = simulate(arrivals, replace(config, max_queue_size=1), cost, users=2)
    assert result.done[:2].tolist() == [True, False]
    back = result.arrival.tolist().index(PAUSE_AFTER_FAILURE)
    # Until then, the other user sends all requests.
    assert (result.arrival[2:back] > result.finish[[0, *range(2, back - 1)]]).all()


def test_padding_is_paid_for(cost: StepCost, config: EngineConfig) -> None:
    arrivals = [Arrival(0.0, 8, 4, 4), Arrival(0.0, 2, 1, 1)]
    static = replace(config, batching_strategy="static", max_num_seqs=2)
    padded, plain = simulate(arrivals, static, cost), simulate(arrivals, config, cost)
    # The short prompt is padded to the long one, and its empty slot in the three decodes is padding too.
    assert padded.padding_tokens == 6 + 3
    assert padded.step_seconds - plain.step_seconds == pytest.approx(9 * cost.per_token)


def test_shared_prefixes_are_computed_once(cost: StepCost, config: EngineConfig) -> None:
    config = replace(config, enable_prefix_caching=True)
    arrivals = Stream(AllAtOnce(), fixed(8), fixed(4), prefix_tokens=64).make(6, 1)
    result = simulate(arrivals, config, cost)
    assert result.cached.tolist() == [0, *[64] * 5]


def test_streams_share_no_prefix(cost: StepCost, config: EngineConfig) -> None:
    config = replace(config, enable_prefix_caching=True)
    kinds = "chat", "code", "chat"
    requests = [PlannedRequest(float(at), 72, 4, 4, prefix_tokens=64, kind=kind) for at, kind in enumerate(kinds)]
    assert simulate(requests, config, cost).cached.tolist() == [0, 0, 64]


def test_a_full_queue_refuses(arrivals: list[Arrival], config: EngineConfig, cost: StepCost) -> None:
    result = simulate([replace(a, at=0.0) for a in arrivals], replace(config, max_queue_size=20), cost)
    assert result.done.sum() == 20
    assert result.attainment(Slo(ttft=1e3, itl=1e3)) == pytest.approx(20 / len(arrivals))


def test_lost_requests_are_shed(arrivals: list[Arrival], config: EngineConfig, cost: StepCost) -> None:
    config = replace(config, scheduling_policy="slo", shed_lost_requests=True, target_ttft_ms=20.0)
    result = simulate([replace(a, at=0.0) for a in arrivals], config, cost)
    assert 0 < result.done.sum() < len(arrivals)


def test_a_request_that_can_never_fit_is_named(config: EngineConfig, cost: StepCost) -> None:
    with pytest.raises(ValueError, match="kv_cache_tokens is 512; a request has 600 prompt tokens and max_tokens 1,"):
        simulate([Arrival(0.0, 600, 1, 1)], config, cost)
    # The context ends before the cache does.
    short = replace(config, max_model_len=100)
    assert simulate([Arrival(0.0, 90, 10, 10)], short, cost).done.all()
    with pytest.raises(ValueError, match="max_model_len is 100; a request has 90 prompt tokens and max_tokens 11"):
        simulate([Arrival(0.0, 90, 10, 11)], short, cost)


class _VirtualRunner:
    """Runs no model and advances the time by the duration of a step."""

    def __init__(self, cost: StepCost) -> None:
        self.now = 0.0
        self.plans: list[list[tuple[str, int]]] = []
        self._cost = cost

    def run(self, plan: StepPlan) -> list[StepResult]:
        self.now += self._cost.seconds(plan)
        self.plans.append(_shares(plan))
        return [StepResult((0,))] * len(plan.sampling)


def _shares(plan: StepPlan) -> list[tuple[str, int]]:
    return [(share.request.request_id, share.num_tokens) for share in plan.scheduled]


def _engine_plans(arrivals: Sequence[Arrival], config: EngineConfig, cost: StepCost) -> list[list[tuple[str, int]]]:
    """The steps that `EngineCore` runs on the same virtual clock."""
    runner = _VirtualRunner(cost)
    core = EngineCore(make_scheduler(config, cost), runner, max_queue_size=10_000, clock=lambda: runner.now)
    waiting = [scripted_request(a, i, 0.0, distinct=config.enable_prefix_caching) for i, a in enumerate(arrivals)]
    while waiting or core.has_work:
        while waiting and waiting[0].arrival <= runner.now:
            core.submit(waiting.pop(0))
        if core.has_work:
            core.step()
        else:
            runner.now = waiting[0].arrival
    return runner.plans


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scheduling_policy": "sjf"},
        {"scheduling_policy": "slo", "target_ttft_ms": 50.0},
        {"kv_cache_tokens": 96, "block_size": 4},
        {"enable_prefix_caching": True, "token_budget": "adaptive", "target_itl_ms": 3.0},
        {"enable_chunked_prefill": False, "scheduler_delay_factor": 1.0},
    ],
    ids=str,
)
def test_the_engine_plans_the_same(
    arrivals: list[Arrival],
    config: EngineConfig,
    cost: StepCost,
    settings: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(config, **settings)  # type: ignore[arg-type]
    plans: list[list[tuple[str, int]]] = []
    simulation = Simulation(arrivals, config, cost)
    schedule = simulation.scheduler.schedule

    def noted(now: float) -> StepPlan:
        plan = schedule(now)
        if plan.scheduled:
            plans.append(_shares(plan))
        return plan

    monkeypatch.setattr(simulation.scheduler, "schedule", noted)
    while simulation.step():
        pass
    assert plans == _engine_plans(arrivals, config, cost)


def test_a_sweep_puts_the_best_first(arrivals: list[Arrival], config: EngineConfig, cost: StepCost) -> None:
    found = sweep(arrivals, config, cost, Slo(0.1, 0.01), {"max_num_seqs": (1, 8)})
    assert [candidate.label for candidate in found] == ["max_num_seqs=8", "max_num_seqs=1"]


def test_step_times_are_read_from_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    true = StepCost(per_step=5e-3, per_token=2e-4, per_cached_token=1e-6, per_pair=1e-7)
    steps = [(1 + 37 * i % 300, 91 * i % 5000) for i in range(200)]
    events = [
        {
            "name": "step",
            "dur": 1e6
            * (
                true.per_step
                + true.per_token * tokens
                + true.per_cached_token * cached
                + true.per_pair * attention_pairs(cached, tokens)
            ),
            "args": {
                "tokens": tokens,
                "cached_tokens": cached,
                "attention_pairs": attention_pairs(cached, tokens),
                "padding_tokens": 0,
            },
        }
        for tokens, cached in steps
    ]
    trace.write_text(json.dumps([{"ph": "E"}, {"name": "failed step", "dur": 9e9, "args": {}}, *events]))
    fitted = StepCost.of_trace(trace)
    assert fitted.per_step == pytest.approx(true.per_step, rel=0.01)
    assert fitted.per_token == pytest.approx(true.per_token, rel=0.01)
    assert fitted.per_cached_token == pytest.approx(true.per_cached_token, rel=0.05)
    assert fitted.per_pair == pytest.approx(true.per_pair, rel=0.05)


def test_a_trace_of_nothing_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("[]")
    with pytest.raises(ValueError, match="0 steps"):
        StepCost.of_trace(trace)


def test_a_trace_of_another_program_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('[{"name": "step", "dur": 5, "args": {"tokens": 3}}]')
    with pytest.raises(ValueError, match=r"trace\.json is no trace of an engine: a step has no 'padding_tokens'"):
        StepCost.of_trace(trace)


def test_settings_of_the_queue_apply(config: EngineConfig, cost: StepCost) -> None:
    crowd = Stream(AllAtOnce(), fixed(16), fixed(16)).make(40, 0)
    config = replace(config, max_num_seqs=1)
    whole = simulate(crowd, config, cost)
    assert whole.done.all()
    patience = float(np.sort(whole.first_token)[10])
    hasty = simulate(crowd, replace(config, default_timeout_microseconds=round(1e6 * patience)), cost)
    assert 9 <= hasty.done.sum() <= 12
    bounded = simulate(crowd, replace(config, max_queue_tokens=config.kv_cache_tokens), cost)
    assert config.kv_cache_tokens is not None
    assert bounded.done.sum() == config.kv_cache_tokens // 16
    levels = replace(config, priority_levels=2, default_priority_level=2)
    urgent = replace(crowd[-1], priority=1)
    result = simulate([*crowd[:-1], urgent], levels, cost)
    assert result.first_token[-1] == result.first_token.min()
