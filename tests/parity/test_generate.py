"""Greedy tokens are those of transformers' `generate`, whatever the chunks, blocks, neighbours and preemptions."""

import random
from pathlib import Path

import pytest

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.loading.loader import LoadedModel, load_model
from scripts.reference.tiny_models import SERVED, VOCABULARY, greedy, save_model

MAX_TOKENS = 20


@pytest.fixture(scope="module", params=SERVED)
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, LoadedModel, list[list[int]], list[list[int]]]:
    """A model's folder, the model, prompts, and what `generate` says to them."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(SERVED[request.param].config, folder)
    rng = random.Random(1)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 44))] for _ in range(8)]
    # Two begin alike, so that the second finds blocks of the first in the cache.
    prompts.append(prompts[0][:30] + prompts[1])
    # Loading takes longer than serving, and in float32 on the CPU no setting below changes what is loaded.
    loaded = load_model(EngineConfig(model=str(folder), dtype="float32"))
    return folder, loaded, prompts, [greedy(model, prompt, MAX_TOKENS) for prompt in prompts]


# Prompts in chunks, some of them in chunks, and whole. Neither number is known to the code of a kind of model.
@pytest.mark.parametrize(("budget", "block_size"), [(16, 16), (64, 8), (2048, 16)])
def test_tokens_are_those_of_generate(
    tiny: tuple[Path, LoadedModel, list[list[int]], list[list[int]]], budget: int, block_size: int
) -> None:
    folder, loaded, prompts, expected = tiny
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        block_size=block_size,
        max_num_batched_tokens=budget,
        # Room for one or two of the requests.
        kv_cache_tokens=96,
    )
    engine = Engine(config, loaded)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, temperature=0))
    assert [output.token_ids for output in outputs] == expected
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.blocks_used == 0
