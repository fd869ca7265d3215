"""Greedy tokens stay those of `generate` under every way to batch, admit, preempt and reuse."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.scheduler.scheduler_config import (
    ADMISSION_POLICIES,
    BATCHING_STRATEGIES,
    PREEMPTION_MODES,
    SCHEDULING_POLICIES,
)
from scripts.reference.tiny_models import SERVED, VOCABULARY, greedy, save_model

MAX_TOKENS = 20
# Policies take turns, and each round begins with the next one, so that over the rounds each meets every other setting.
COMBINATIONS = [
    (*combination, SCHEDULING_POLICIES[(number + number // len(SCHEDULING_POLICIES)) % len(SCHEDULING_POLICIES)])
    for number, combination in enumerate(
        itertools.product(BATCHING_STRATEGIES, ADMISSION_POLICIES, PREEMPTION_MODES, [True, False])
    )
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]], list[list[int]]]:
    """A model's folder, prompts some of which begin alike, and what `generate` says to them."""
    folder = tmp_path_factory.mktemp("llama")
    model = save_model(SERVED["llama"].config, folder)
    rng = random.Random(1)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 44))] for _ in range(8)]
    prompts += [prompts[0][:30] + prompts[1], prompts[0][:30] + prompts[2]]
    return folder, prompts, [greedy(model, prompt, MAX_TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def loaded(tiny: tuple[Path, Any, Any]) -> LoadedModel:
    """Loading and checking the model takes longer than serving it; no setting below concerns either."""
    return load_model(EngineConfig(model=str(tiny[0]), dtype="float32"))


@pytest.mark.parametrize(("strategy", "admission", "preemption", "caching", "policy"), COMBINATIONS)
def test_tokens_are_those_of_generate(
    tiny: tuple[Path, Any, Any],
    loaded: LoadedModel,
    strategy: str,
    admission: str,
    preemption: str,
    caching: bool,
    policy: str,
) -> None:
    folder, prompts, expected = tiny
    engine = Engine(
        EngineConfig(
            model=str(folder),
            dtype="float32",
            block_size=8,
            max_num_batched_tokens=32,
            max_num_seqs=4,
            kv_cache_tokens=96,  # Room for one or two of the requests.
            batching_strategy=strategy,
            batch_wait_ms=0,
            batch_scheduler_policy=admission,
            preemption_mode=preemption,
            swap_space_tokens=0 if preemption == "recompute" else 64,
            enable_prefix_caching=caching,
            scheduling_policy=policy,
            request_classes={"all": {"policy": "sjf"}, "others": {}} if policy == "classes" else {},
            priority_levels=2 if policy == "priority" else 0,
            default_priority_level=2 if policy == "priority" else 0,
        ),
        loaded,
    )
    # Outputs are long after many short ones: whoever predicts them is wrong.
    engine.generate([[5]] * 12, SamplingParams(max_tokens=2, temperature=0))
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, temperature=0))
    assert [output.token_ids for output in outputs] == expected
    stats = engine.stats()
    if admission == "guaranteed_no_evict":
        assert stats.preemptions == 0
    elif strategy != "dynamic":  # Its batches are small.
        assert stats.preemptions > 0
    if preemption == "swap":
        assert (stats.swaps > 0) == (stats.preemptions > 0)
    assert (stats.padding_tokens > 0) == (strategy != "continuous")
    assert (stats.blocks_used, stats.host_blocks_used) == (0, 0)
