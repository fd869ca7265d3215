"""Greedy tokens are those of transformers' `generate` when keys and values come from host memory, or from a disk."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.loading.loader import LoadedModel, load_model
from scripts.reference.tiny_models import MODELS, SERVED, VOCABULARY, greedy, save_model

MAX_TOKENS = 20
BLOCK = 8
# Room for one or two of the requests.
SCARCE = {"kv_cache_tokens": 80, "swap_space_tokens": 192, "preemption_mode": "swap"}


@pytest.fixture(scope="module", params=[*list(SERVED)[:12], "bloom", "deepseek_v32"])
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, list[list[int]], list[list[int]]]:
    """A model, prompts with beginnings in common, and what `generate` says to them."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(MODELS[request.param].config, folder)
    rng = random.Random(1)
    stem = [rng.randrange(3, VOCABULARY) for _ in range(33)]
    prompts = [stem[:length] + [rng.randrange(3, VOCABULARY) for _ in range(9)] for length in (33, 0, 17, 0, 33, 24)]
    loaded = load_model(EngineConfig(model=str(folder), dtype="float32", max_model_len=256))
    return loaded, prompts, [greedy(model, prompt, MAX_TOKENS) for prompt in prompts]


def serve(
    model: LoadedModel, prompts: Sequence[list[int]], times: int = 1, **settings: Any
) -> tuple[list[list[int]], Engine]:
    """The outputs of a new engine, which serves the prompts so many times and is closed afterwards."""
    config = EngineConfig(
        model="tiny", dtype="float32", block_size=BLOCK, max_num_batched_tokens=24, max_num_seqs=4, **settings
    )
    engine = Engine(config, model)
    outputs = []
    for _ in range(times):
        outputs += engine.generate(list(prompts), SamplingParams(max_tokens=MAX_TOKENS, temperature=0))
    engine.close()
    return [output.token_ids for output in outputs], engine


def test_through_host_memory(tiny: tuple[LoadedModel, list[list[int]], list[list[int]]]) -> None:
    model, prompts, expected = tiny
    outputs, engine = serve(model, prompts, 2, **SCARCE)
    assert outputs == 2 * expected
    stats = engine.stats()
    assert stats.swaps > 0
    assert stats.hits["host"] > 0
    assert stats.host_blocks_used == 0
    assert stats.host_blocks_kept > 0


def test_after_a_restart(tiny: tuple[LoadedModel, list[list[int]], list[list[int]]], tmp_path: Path) -> None:
    model, prompts, expected = tiny
    first, restarted = (
        serve(model, prompts, kv_offloading_path=str(tmp_path / "kv"), **settings)
        for settings in ({"kv_cache_tokens": 512}, SCARCE)
    )
    for outputs, engine in (first, restarted):
        assert outputs == expected
        stats = engine.stats()
        assert stats.disk is not None
        assert stats.disk.outcomes["corrupt"] == stats.disk.outcomes["dropped"] == 0
        assert stats.cached_tokens == sum(stats.hits.values())
    assert first[1].stats().hits.get("disk", 0) == 0
    assert stats.hits["disk"] > 0
    assert stats.swaps > 0
