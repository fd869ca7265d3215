"""The space has the settings that can matter under a load, and no others."""

from dataclasses import replace

import pytest

from load_tests.slo import Slo
from load_tests.traffic import Arrival
from load_tests.tune.grid import SIMULATED
from load_tests.tune.simulated import default_config
from load_tests.tune.space import PREFILL_THRESHOLD, Space, space_for

SLO = Slo(ttft=0.5, itl=0.2)
BASE = default_config(SIMULATED)
SHORT = [Arrival(0.0, 20, 10, 10) for _ in range(40)]


def space(requests: list[Arrival], users: int | None = 16, kv_cache_tokens: int = 100_000) -> Space:
    return space_for(replace(BASE, kv_cache_tokens=kv_cache_tokens), requests, users, SLO)


def values(found: Space, name: str) -> list[str]:
    return [label for knob in found.knobs if knob.name == name for label in knob.values]


def test_numbers_above_what_a_load_can_fill_are_left_out() -> None:
    assert values(space(SHORT), "max_num_seqs") == ["8", "64"]
    assert values(space(SHORT, users=100), "max_num_seqs") == ["8", "16", "32", "64", "128"]
    assert values(space(SHORT), "max_num_batched_tokens") == ["128", "512"]


def test_knobs_that_do_nothing_are_left_out() -> None:
    assert values(space(SHORT), "long_prefill_token_threshold") == []
    assert values(space(SHORT), "batch_scheduler_policy") == []
    long = [replace(SHORT[0], prompt_tokens=PREFILL_THRESHOLD + 1)]
    assert values(space(long), "long_prefill_token_threshold") == ["0", str(PREFILL_THRESHOLD)]
    assert "future_peak" in values(space(SHORT, kv_cache_tokens=16 * 29), "batch_scheduler_policy")


def test_policies_for_tenants_and_priorities_need_some() -> None:
    assert values(space(SHORT), "scheduling_policy") == ["fcfs", "sjf", "slo"]
    tenants = [replace(SHORT[0], tenant=name) for name in ("ann", "bob")]
    assert "fair" in values(space(tenants), "scheduling_policy")
    levels = [replace(SHORT[0], priority=level) for level in (1, 3)]
    assert "priority" in values(space(levels), "scheduling_policy")
    assert "priority" not in values(space([*levels, SHORT[0]]), "scheduling_policy")


def test_every_choice_is_a_configuration() -> None:
    requests = [replace(SHORT[0], prompt_tokens=900, tenant=t, priority=p) for t, p in (("ann", 1), ("bob", 3))]
    found = space(requests, kv_cache_tokens=1000)
    choices = list(found.choices())
    assert len(choices) == found.size
    assert len({repr(found.config(choice)) for choice in choices}) == found.size > 100
    assert found.config(found.default) == found.base


def test_a_choice_sets_what_differs_from_the_default() -> None:
    found = space(SHORT)
    assert found.settings(found.default) == {}
    choice = {**found.default, "token_budget": "adaptive, target_itl_ms=100", "scheduling_policy": "slo"}
    assert found.settings(choice) == {
        "token_budget": "adaptive",
        "target_itl_ms": 100.0,
        "scheduling_policy": "slo",
        "target_ttft_ms": 500.0,
    }


def test_guesses_are_choices_and_begin_with_the_default() -> None:
    found = space(SHORT)
    assert found.guesses()[0] == found.default
    assert all(guess in list(found.choices()) for guess in found.guesses())


@pytest.mark.parametrize("users", [1, 2])
def test_few_users_leave_a_small_space(users: int) -> None:
    assert values(space(SHORT, users=users), "max_num_seqs") == []
