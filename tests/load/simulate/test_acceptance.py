"""Drafts in the simulator are right as often as their profile says, and profiles are those of runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.config import EngineConfig
from load_tests.arrivals import AllAtOnce
from load_tests.lengths import fixed
from load_tests.simulate.acceptance import AcceptanceProfile
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import A100_LLAMA_8B, StepCost
from load_tests.traffic import Arrival, Stream

ALWAYS = {"adaptive": False, "num_speculative_tokens": 4}
ADAPTIVE = {"num_speculative_tokens": 8}


@pytest.mark.parametrize(("probability", "steps"), [(1.0, 1 + 12), (1e-9, 1 + 60)])
def test_steps_bring_the_tokens_that_are_right(config: EngineConfig, probability: float, steps: int) -> None:
    drafting = replace(config, speculative_config=ALWAYS)
    result = simulate(
        [Arrival(0.0, 8, 61, 61)], drafting, A100_LLAMA_8B, acceptance=AcceptanceProfile(1.0, (probability,))
    )
    assert result.done.all()
    assert result.steps == steps


def test_the_times_between_tokens_are_those_of_all_tokens(config: EngineConfig) -> None:
    """As the engine's metric counts them: tokens that come together share the time since the one before."""
    drafting = replace(config, speculative_config=ALWAYS)
    result = simulate([Arrival(0.0, 8, 62, 62)], drafting, A100_LLAMA_8B, acceptance=AcceptanceProfile(1.0, (0.7,)))
    assert result.gap_counts.sum() == 61
    assert (result.gaps * result.gap_counts).sum() == pytest.approx(result.finish[0] - result.first_token[0])


def test_drafts_are_sooner_for_one_user_and_not_later_for_many(config: EngineConfig) -> None:
    profile = AcceptanceProfile(0.5, (0.8,))
    # A step waits for its weights up to some 30 rows. From then on, each row costs.
    cost = StepCost(per_step=10e-3, per_token=0.3e-3, per_cached_token=0.0)
    for users, least in ((1, 1.3), (64, 0.99)):
        arrivals = Stream(AllAtOnce(), fixed(8), fixed(60)).make(4 * users, 1)
        roomy = replace(config, max_num_seqs=64, max_num_batched_tokens=512, kv_cache_tokens=64 * 256)
        plain = simulate(arrivals, roomy, cost, users=users)
        drafting = simulate(
            arrivals, replace(roomy, speculative_config=ADAPTIVE), cost, users=users, acceptance=profile
        )
        assert plain.duration / drafting.duration > least


def test_a_profile_is_that_of_a_run(tmp_path: Path) -> None:
    def begun(name: str, **args: int) -> dict[str, object]:
        return {"ph": "B", "name": name, "args": args}

    events = [
        begun("prefill", cached_tokens=0),
        begun("chunk of 8", tokens=8),
        begun("token", tokens=1),
        begun("token + 3 drafted, 3 right", tokens=4, drafted_tokens=3, accepted_tokens=3),
        begun("token + 3 drafted, 1 right", tokens=4, drafted_tokens=3, accepted_tokens=1),
        begun("token + 1 drafted, 0 right", tokens=2, drafted_tokens=1, accepted_tokens=0),
        begun("token + 1 drafted, 1 right", tokens=2, drafted_tokens=1, accepted_tokens=1),
        {"ph": "E"},
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(events))
    assert AcceptanceProfile.read(str(trace)) == AcceptanceProfile(4 / 5, (3 / 4, 1 / 2, 1.0))
    failed = [events[3], events[2], {"ph": "X", "name": "failed step", "args": {}}]
    succeeded = {"ph": "X", "name": "step", "args": {}}
    trace.write_text(json.dumps([*events[:5], succeeded, *failed, *events[5:], succeeded, *failed]))
    assert AcceptanceProfile.read(str(trace)) == AcceptanceProfile(4 / 5, (3 / 4, 1 / 2, 1.0))
    trace.write_text(json.dumps(events[:3]))
    with pytest.raises(ValueError, match="has no drafts; record it with speculative_config"):
        AcceptanceProfile.of_trace(trace)


@pytest.mark.parametrize("text", ["0", "1.5", "nan"])
def test_an_impossible_acceptance_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"the acceptance is {text}; it must be over 0 and at most 1"):
        AcceptanceProfile.read(text)


def test_drafts_need_an_acceptance(config: EngineConfig) -> None:
    with pytest.raises(ValueError, match="must be given together"):
        simulate([Arrival(0.0, 8, 4, 4)], replace(config, speculative_config=ALWAYS), A100_LLAMA_8B)
