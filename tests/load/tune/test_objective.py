"""Objectives agree on the simulator's results and on a server's, and order settings as they say."""

from dataclasses import replace

import pytest

from inflight.config import EngineConfig
from load_tests.records import Run
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import StepCost
from load_tests.slo import Slo
from load_tests.traffic import Arrival
from load_tests.tune.objective import OBJECTIVES, objective, overshoot_of
from tests.load.synthetic_runs import run_of

SLO = Slo(ttft=1.0, itl=0.1)


@pytest.fixture
def result(arrivals: list[Arrival], config: EngineConfig, cost: StepCost) -> Result:
    return simulate(arrivals, config, cost)


def as_run(result: Result) -> Run:
    """The same times as a client would record them."""
    (template,) = run_of(1).records
    rows = zip(result.arrival, result.first_token, result.finish, result.output, strict=True)
    return Run(
        [
            replace(
                template,
                scheduled=float(at),
                first_token=float(first),
                last_token=float(last),
                output_tokens=int(tokens),
                gaps=((last - first) / max(1, tokens - 1),) * (tokens - 1),
            )
            for at, first, last, tokens in rows
        ],
        0.1,
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_server_with_the_times_of_the_simulator_has_its_value(result: Result, name: str) -> None:
    aim = objective(name, SLO)
    assert aim.value(result) > 0
    assert aim.value(as_run(result)) == pytest.approx(aim.value(result))


def test_more_throughput_and_less_latency_are_gains(result: Result) -> None:
    throughput, latency = objective("throughput", SLO), objective("latency", SLO)
    assert throughput.gain(110, 100) == pytest.approx(0.1)
    assert latency.gain(0.9, 1.0) == pytest.approx(0.1)
    slower = replace(result, finish=result.finish + 1)
    assert throughput.loss(slower) > throughput.loss(result)
    assert latency.loss(slower) > latency.loss(result)


def test_cost_within_the_targets_is_better_than_any_beyond(result: Result) -> None:
    cheap_and_late = replace(result, first_token=result.arrival + 2, finish=result.arrival + 2.001)
    cost = objective("cost", SLO)
    assert cost.loss(result) == cost.value(result)
    assert cost.loss(cheap_and_late) > 1e6
    tolerant = objective("cost", Slo(ttft=3.0, itl=0.1))
    assert tolerant.loss(cheap_and_late) == tolerant.value(cheap_and_late)


def test_cost_leaves_out_the_time_without_requests() -> None:
    (record,) = run_of(100).records
    later = replace(record, scheduled=10.0, first_token=10.5, last_token=11.0)
    cost = objective("cost", SLO)
    assert cost.value(Run([record, later], 0.1)) == pytest.approx(1e3 * 2.0 / 200)


def test_the_first_request_of_each_user_does_not_count_for_ttft() -> None:
    (record,) = run_of(100).records
    late = replace(record, first_token=9.0, last_token=10.0)
    run = Run([late, late, record, record], 0.1)
    assert objective("ttft", SLO).value(run) == 9.0
    assert objective("ttft", SLO, users=2).value(run) == 0.5
    assert objective("latency", SLO, users=2).value(run) == objective("latency", SLO).value(run)


def test_a_request_s_own_target_replaces_that_of_the_cost() -> None:
    (record,) = run_of(100).records
    cost = objective("cost", SLO)
    for target, kept in ((None, True), (0.4, False)):
        run = Run([record, replace(record, target_ttft=target)], 0.1)
        assert (cost.loss(run) == cost.value(run)) == kept
    assert cost.loss(Run([replace(record, first_token=3.0, target_ttft=4.0)], 0.1)) < 1e6


@pytest.mark.parametrize("name", OBJECTIVES)
def test_settings_that_answer_nothing_are_the_worst(name: str) -> None:
    aim = objective(name, SLO, users=1)
    answered, refused = (Run([*run_of(100, error).records] * 2, 0.1) for error in (None, "ServerOverloaded"))
    assert aim.loss(answered) < aim.loss(refused)


def test_no_request_is_left_of_those_that_count_for_ttft() -> None:
    assert objective("ttft", SLO, users=16).loss(run_of(100)) == float("inf")


def test_one_request_in_twenty_may_miss_the_targets_of_the_cost() -> None:
    (record,) = run_of(100).records
    late = replace(record, first_token=3.0, last_token=3.5)
    cost = objective("cost", SLO)
    for num_late, kept in ((1, True), (2, False)):
        run = Run([*[record] * (20 - num_late), *[late] * num_late], 0.1)
        assert (cost.loss(run) < 1e6) == kept
        assert overshoot_of(run, SLO) == (0.5 if kept else 3.0)
