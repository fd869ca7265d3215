"""The measures of a level, on requests that can be checked on paper."""

from dataclasses import replace

import numpy as np
import pytest

from inflight_client.metrics import parse_metrics
from load_tests.capacity.columns import client_columns
from load_tests.capacity.level import (
    Level,
    Repeat,
    itl_p99,
    load_text,
    percentile,
    static_efficiency,
    ttft_p95,
    ttft_share_p95,
)
from load_tests.capacity.server_metrics import has_engine_metrics, server_use
from load_tests.records import UNFINISHED, Run
from load_tests.slo import Slo
from tests.load.capacity.synthetic_sweeps import OUTPUT_TOKENS, record, sample


def repeat(*sent: float, begin: float = 2.0, end: float = 10.0, ttft: float = 0.5, gap: float = 0.1) -> Repeat:
    return Repeat(Run([record(i, at, ttft, gap) for i, at in enumerate(sent)], 0.0), 0.0, begin, end, [])


def test_tokens_count_when_they_come_and_requests_when_they_are_sent() -> None:
    # The first answer's tokens arrive from 1.5 s on, a tenth of a second apart: 14 of 20 before 2.95 s.
    one = repeat(1.0, 3.0, begin=2.95, end=100.0)
    assert one.throughput * one.seconds == pytest.approx(OUTPUT_TOKENS - 15 + OUTPUT_TOKENS)
    assert one.request_rate * one.seconds == 1


def test_a_failure_is_an_endless_wait() -> None:
    good = repeat(*np.linspace(3, 4, 20).tolist())
    one_in_ten = Run([replace(r, error="ServerOverloaded") if r.index < 2 else r for r in good.run.records], 0.0)
    failing = replace(good, run=one_in_ten)
    assert (good.failed, failing.failed) == (0, pytest.approx(0.1))
    assert ttft_p95(good) == pytest.approx(0.5)
    assert ttft_p95(failing) == float("inf")
    columns = {column.name: column.value for column in client_columns(Slo(1, 1))}
    assert (columns["E2E p50"](failing), columns["E2E p99"](failing)) == (columns["E2E p50"](good), float("inf"))
    none = replace(good, run=Run([replace(r, error="ServerOverloaded") for r in good.run.records], 0.0))
    assert (Level(1, [none]).latency, none.failed) == (float("inf"), 1)
    assert (columns["counted"](good), columns["counted"](replace(good, begin=3.5))) == (20, 10)
    # The users failed before the measured part, and sent nothing in it.
    assert replace(none, begin=5.0).failed == 1


@pytest.mark.parametrize(("slo", "kept"), [(Slo(0.6, 0.2), True), (Slo(0.4, 0.2), False), (Slo(0.6, 0.05), False)])
def test_a_level_keeps_an_objective_if_every_repeat_does(slo: Slo, kept: bool) -> None:
    fast, slow = repeat(3.0, ttft=0.1, gap=0.01), repeat(3.0)
    assert Level(1, [fast, fast]).keeps(Slo(0.4, 0.05))
    assert Level(1, [fast, slow]).keeps(slo) == kept


def test_goodput_counts_requests_within_the_objective() -> None:
    assert repeat(3.0, 4.0).goodput(Slo(1.0, 1.0)) == 2 / 8
    assert repeat(3.0, 4.0).goodput(Slo(0.1, 1.0)) == 0


def test_middle_and_spread_are_those_of_the_repeats() -> None:
    level = Level(1, [repeat(3.0, ttft=ttft) for ttft in (0.3, 0.1, 0.2)])
    assert level.middle(ttft_p95) == pytest.approx(0.2)
    assert level.spread(ttft_p95) == (pytest.approx(0.1), pytest.approx(0.3))


def test_a_run_without_a_measure_has_no_place_in_the_order_of_runs() -> None:
    level = Level(1, [repeat(), repeat(3.0, ttft=0.3), repeat(), repeat(3.0, ttft=0.1)])
    assert level.middle(ttft_p95) == pytest.approx(0.2)
    assert level.spread(ttft_p95) == (pytest.approx(0.1), pytest.approx(0.3))
    assert np.isnan([Level(1, [repeat()]).middle(ttft_p95), *Level(1, [repeat()]).spread(ttft_p95)]).all()


def test_nothing_is_within_no_objective_and_has_no_gaps() -> None:
    assert np.isnan(percentile(np.array([]), 95))
    assert not Level(1, [repeat()]).keeps(Slo(1e9, 1e9))
    assert itl_p99(repeat()) == 0


def test_static_batches_fill_their_places_as_far_as_answers_are_equally_long() -> None:
    lengths = [10, 2, 5, 5, 9]
    records = [replace(record(i, 3.0, 0.1, 0.1), output_tokens=tokens) for i, tokens in enumerate(lengths)]
    one = replace(repeat(), run=Run(records, 0.0))
    assert static_efficiency(one, 1) == 1
    # The fifth request is left out, because it does not fill a batch of two.
    assert static_efficiency(one, 2) == (10 + 2 + 5 + 5) / (2 * 10 + 2 * 5)
    assert np.isnan(static_efficiency(one, 6))


def test_the_use_of_a_server_is_what_its_counters_grew_by() -> None:
    first, last = sample(1.0, 8, 10.0), replace(sample(3.0, 8, 10.0), padding_tokens=480.0)
    use = server_use([first, last])
    assert use is not None
    assert use.throughput == 10 * 8
    assert (use.batch_size, use.prefill_to_decode, use.max_running) == (8, 2, 8)
    # 20 steps of 24 tokens under a budget of 512, and as many tokens of padding.
    assert use.batch_utilisation == pytest.approx(24 / 512)
    assert use.batch_efficiency == pytest.approx(0.5)
    assert use.largest_step_tokens == 128
    assert server_use([first]) is None
    assert server_use([]) is None


def test_a_server_that_is_none_of_ours_is_known_by_its_metrics() -> None:
    assert not has_engine_metrics(parse_metrics('vllm:num_requests_running{model="llm"} 1\n'), "llm")
    assert has_engine_metrics(parse_metrics('inflight:num_requests_running{model="llm"} 1\n'), "llm")


def test_a_request_s_own_target_replaces_that_of_the_objective() -> None:
    """Half of the requests are interactive and half are jobs, which may wait longer than the objective says."""

    def mixed(interactive: float, job: float) -> Level:
        records = [
            replace(record(i, at, ttft, 0.1), target_ttft=target)
            for at in np.linspace(3, 4, 20)
            for i, (ttft, target) in enumerate([(interactive, 0.5), (job, 30.0)])
        ]
        return Level(2, [replace(repeat(), run=Run(records, 0.0))])

    slo = Slo(1.0, 0.2)
    assert mixed(0.3, 10.0).keeps(slo)
    assert not mixed(0.9, 0.9).keeps(slo)
    assert ttft_share_p95(mixed(0.9, 3.0).repeats[0], slo) == pytest.approx(0.9 / 0.5)


def test_users_who_get_no_answer_count_although_they_send_nothing_more() -> None:
    answered = [record(i, at, 0.1, 0.1) for i, at in enumerate(np.linspace(2.5, 9.0, 8).tolist())]
    stuck = replace(record(8, 0.0, 0.1, 0.1), first_token=None, last_token=None, gaps=(), error=UNFINISHED)
    late = record(9, 0.0, 11.0, 0.1)
    in_time = record(10, 0.0, 3.0, 0.5)
    for earlier, failed, longest in ((stuck, 1 / 9, np.inf), (late, 0, 11), (in_time, 0, 0.1)):
        one = replace(repeat(), run=Run([earlier, *answered], 0.0))
        assert one.failed == pytest.approx(failed)
        assert max(one.ttft) == pytest.approx(longest)
        assert Level(8, [one]).keeps(Slo(1.0, 1.0)) == (earlier is in_time)
        # The rate is of what was sent in the measured part.
        assert one.request_rate * one.seconds == 8


def test_loads_are_written_with_all_digits_of_their_whole_part() -> None:
    assert [load_text(load) for load in (0.59460, 2.3784, 64, 1076, 16384)] == ["0.595", "2.38", "64", "1076", "16384"]
    assert [load_text(load, 4) for load in (0.59460, 1076, 16384)] == ["0.5946", "1076", "16384"]


def test_the_use_of_a_server_is_that_of_the_measured_part() -> None:
    samples = [sample(0.0, 30, 10.0), sample(2.0, 8, 10.0), sample(10.0, 8, 10.0), sample(11.0, 30, 10.0)]
    use = replace(repeat(begin=2.0, end=10.0), server=samples).use
    assert use is not None
    assert (use.max_running, use.throughput) == (8, 80)
