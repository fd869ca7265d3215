"""Greedy tokens are those of transformers' `generate`, whatever the chunks, blocks, neighbours and preemptions."""

import random
from pathlib import Path
from typing import Any

import pytest

from inflight import Engine, EngineConfig, SamplingParams
from scripts.reference.tiny_models import SERVED, VOCABULARY, greedy, save_model

MAX_TOKENS = 20


@pytest.fixture(scope="module", params=SERVED)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(SERVED[request.param].config, folder)
    rng = random.Random(1)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 44))] for _ in range(8)]
    # Two begin alike, so that the second finds blocks of the first in the cache.
    prompts.append(prompts[0][:30] + prompts[1])
    return folder, prompts, [greedy(model, prompt, MAX_TOKENS) for prompt in prompts]


@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("budget", [16, 64, 2048])
def test_tokens_are_those_of_generate(tiny: tuple[Path, Any, Any], budget: int, block_size: int) -> None:
    folder, prompts, expected = tiny
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        block_size=block_size,
        max_num_batched_tokens=budget,
        # Room for one or two of the requests.
        kv_cache_tokens=96,
    )
    engine = Engine(config)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, temperature=0))
    assert [output.token_ids for output in outputs] == expected
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.blocks_used == 0
