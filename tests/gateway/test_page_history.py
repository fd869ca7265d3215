"""The figures that the page plots, from readings whose differences are known."""

import pytest

from inflight_client import TransportError
from inflight_client.load import Reading, load, turnover
from inflight_client.metrics import merge_metrics, parse_metrics
from inflight_gateway.ui.history import HISTORY_SECONDS, History, columns

LABELS = 'model="llm",version="1"'
STEPS_PER_SECOND = 20
DECODES_PER_STEP, PREFILLS_PER_STEP = 4, 10


def reading(seconds: float, *, waited: float = 0.05) -> Reading:
    """Metrics of a model that has worked evenly since time 0. Its first tokens took up to `waited` seconds."""
    steps = STEPS_PER_SECOND * seconds
    values = {
        "inflight:num_requests_running": 4,
        "inflight:num_requests_waiting": 2,
        "inflight:num_preemptions_total": 0,
        "inflight:prompt_tokens_total": steps * PREFILLS_PER_STEP * 2,
        "inflight:generation_tokens_total": steps * DECODES_PER_STEP,
        "inflight:request_success_total": seconds,
        "inflight:request_refused_total": 0,
        "inflight:prefix_cache_queries_total": steps * PREFILLS_PER_STEP * 2,
        "inflight:prefix_cache_hits_total": steps * PREFILLS_PER_STEP,
        "inflight:step_budget_tokens_total": 512 * steps,
        "inflight:step_duration_seconds_count": steps,
    }
    lines = [f"{name}{{{LABELS}}} {value}" for name, value in values.items()]
    for kind, count in (("prefill", PREFILLS_PER_STEP), ("decode", DECODES_PER_STEP - 1), ("draft", 1)):
        lines.append(f'inflight:computed_tokens_total{{{LABELS},kind="{kind}"}} {steps * count}')
    for kind, blocks in (("used", 96), ("max", 384)):
        lines.append(f'nv_trt_llm_kv_cache_block_metrics{{{LABELS},kv_cache_block_type="{kind}"}} {blocks}')
    for bound in ("0.05", "0.1", "+Inf"):
        count = seconds if float(bound) >= waited else 0
        lines.append(f'inflight:time_to_first_token_seconds_bucket{{{LABELS},le="{bound}"}} {count}')
    return Reading(seconds, parse_metrics("\n".join(lines)), "llm")


def test_each_second_has_a_point_with_the_figures_of_its_time() -> None:
    history = History()
    for half_seconds in range(20):
        for _ in range(2):  # The gateway reads more often than the model counts.
            history.add(reading(half_seconds / 2))
    points = history.since(0)
    assert [point.time for point in points] == list(range(1, 10))
    last = points[-1]
    assert (last.running, last.waiting, last.kv_cache_usage) == (4, 2, 0.25)
    assert last.prefill_tokens_per_step == pytest.approx(PREFILLS_PER_STEP)
    assert last.decode_tokens_per_step == pytest.approx(DECODES_PER_STEP)
    assert last.generated_tokens_per_second == pytest.approx(STEPS_PER_SECOND * DECODES_PER_STEP)
    assert last.finished_per_second == pytest.approx(1)
    assert last.prefix_hit_rate == pytest.approx(0.5)
    assert last.first_token_p50 == pytest.approx(0.025)
    assert last.inter_token_p50 is None
    assert [point.time for point in history.since(7.9)] == [8, 9]
    assert columns(history.since(7.9))["time"] == [8, 9]
    assert columns(history.since(7.9))["inter_token_p99"] == [None, None]


def test_latencies_are_those_of_the_last_minute() -> None:
    history = History()
    for second in range(30):
        history.add(reading(second, waited=0.05))
    for second in range(30, 130):
        history.add(reading(second, waited=0.1))
    median = history.since(0)[-1].first_token_p50
    assert median is not None
    assert 0.05 < median <= 0.1


def test_a_time_without_viewers_is_a_gap() -> None:
    history = History()
    for second in (0, 1, 2, 30, 31):
        history.add(reading(second))
    assert [point.time for point in history.since(0)] == [1, 2, 31]
    history.add(reading(31 + HISTORY_SECONDS))
    history.add(reading(32 + HISTORY_SECONDS))
    assert [point.time for point in history.since(0)] == [32 + HISTORY_SECONDS]


def test_a_step_that_takes_longer_has_the_figures_of_those_before() -> None:
    history = History()
    now = [reading(second) for second in range(3)]
    for each in (*now, Reading(3, now[-1].metrics, "llm")):
        history.add(each)
    assert history.since(2)[0].decode_tokens_per_step == pytest.approx(DECODES_PER_STEP)


def test_a_clock_that_was_set_back_begins_a_new_history() -> None:
    history = History()
    for second in (100, 101, 50, 51):
        history.add(reading(second))
    assert [point.time for point in history.since(0)] == [51]


def test_a_server_that_is_missing_from_a_reading_adds_nothing_to_the_rates() -> None:
    """Otherwise, all that it did since its start would count as done in a moment when it is back."""
    started = 1_000_000.0

    def read(seconds: float, **up_since: float | None) -> Reading:
        found = {
            f"http://{name}:8002/metrics": TransportError("gone") if since is None else reading(seconds - since).metrics
            for name, since in up_since.items()
        }
        return Reading(seconds, merge_metrics(found), "llm")

    both, one = read(started, a=0, b=0), read(started, a=0, b=None)
    later_both, later_one = read(started + 1, a=0, b=0), read(started + 1, a=0, b=None)
    restarted = read(started + 1, a=0, b=started)
    for before, after, servers in (
        (both, later_both, 2),
        (both, later_one, 1),
        (one, later_both, 1),
        (both, restarted, 2),
        (one, read(started + 1, a=None, b=0), 0),
    ):
        found, turned = load(before, after), turnover(before, after)
        assert found.finished_per_second == servers
        assert found.generated_tokens_per_second == servers * STEPS_PER_SECOND * DECODES_PER_STEP
        assert (turned.left, turned.joined) == (servers, servers)
    assert load(one, later_both).first_token.p50 == load(both, later_one).first_token.p50
