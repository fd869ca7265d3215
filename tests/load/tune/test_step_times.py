"""Step times are found again in traces that were made with them."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from load_tests.simulate.step_cost import StepCost
from load_tests.tune.step_times import read_steps, step_cost

TRUE = StepCost(per_step=20e-3, per_token=1e-3, per_cached_token=1e-6, per_sampled_token=0.2e-3)


def trace(steps: int, *, disturbed: float = 0.0) -> list[dict[str, Any]]:
    """Events of steps without pause. A part of them is disturbed and takes three times as long."""
    chance, now, events = Random(0), 0.0, list[dict[str, Any]]()
    for _ in range(steps):
        decodes, chunk = chance.randint(0, 16), chance.choice([0, 0, 0, 50, 200])
        requests = decodes + (chunk > 0) or 1
        tokens, cached = max(decodes + chunk, 1), 100 * decodes
        seconds = TRUE.per_step + TRUE.per_token * tokens + TRUE.per_cached_token * cached
        seconds += TRUE.per_sampled_token * requests
        seconds *= 3 if chance.random() < disturbed else 1
        args = {
            "tokens": tokens,
            "padding_tokens": 0,
            "cached_tokens": cached,
            "attention_pairs": 0,
            "requests": {str(number): 1 for number in range(requests)},
        }
        # The step itself takes 90 % of the time until the next one begins.
        events.append({"name": "step", "ts": 1e6 * now, "dur": 0.9e6 * seconds, "args": args})
        events.append({"name": "requests", "ts": 1e6 * now, "args": {"running": requests, "waiting": 0}})
        events.append({"ph": "E", "ts": 1e6 * now})
        now += seconds
    return events


def fitted(folder: Path, events: list[dict[str, Any]]) -> StepCost:
    path = folder / "trace.json"
    path.write_text(json.dumps(events))
    return step_cost(path)


def test_the_time_between_two_steps_belongs_to_the_first(tmp_path: Path) -> None:
    cost = fitted(tmp_path, trace(400))
    for name in ("per_step", "per_token", "per_cached_token", "per_sampled_token"):
        assert getattr(cost, name) == pytest.approx(getattr(TRUE, name), rel=1e-3), name


def test_disturbed_steps_make_the_machine_slower_in_proportion(tmp_path: Path) -> None:
    cost = fitted(tmp_path, trace(4000, disturbed=0.1))
    assert cost.decode_seconds(8, 100) == pytest.approx(1.2 * TRUE.decode_seconds(8, 100), rel=0.1)


def test_waiting_for_requests_is_no_part_of_a_step() -> None:
    first, counters, _, second, *_ = trace(2)
    counters["args"] = {"running": 0, "waiting": 0}
    second["ts"] += 1e9
    (step,) = read_steps([first, counters, second])
    assert step.seconds == pytest.approx(first["dur"] / 1e6)


def test_a_step_that_failed_is_not_fitted_and_ends_the_one_before() -> None:
    first, counters, _, second, more, _, third, *_ = trace(3)
    second["name"] = "failed step"
    (step,) = read_steps([first, counters, second, more, third])
    assert step.seconds == pytest.approx((second["ts"] - first["ts"]) / 1e6)


def test_no_coefficient_is_negative(tmp_path: Path) -> None:
    events = trace(200)
    for number, event in enumerate(events[::3]):
        event["args"]["cached_tokens"] = 10_000 - 100 * event["args"]["cached_tokens"] // 100 + number
    cost = fitted(tmp_path, events)
    assert min(cost.per_step, cost.per_token, cost.per_cached_token, cost.per_pair, cost.per_sampled_token) >= 0


def test_a_trace_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 50"):
        fitted(tmp_path, trace(20))
