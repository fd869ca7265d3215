"""Greedy tokens are those of transformers' `generate`, whatever the chunks, blocks, neighbours and preemptions."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from inflight import Engine, EngineConfig, RequestOptions, SamplingParams
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.model.loading.loader import LoadedModel, load_model
from scripts.reference.tiny_models import MODELS, OWN_CACHE, RECURRENT, VOCABULARY, greedy, save_model
from tests.engine.models import drain
from tests.eventually import eventually

MAX_TOKENS = 20
# Recurrent states and caches of models stay in their engine. The others take turns with the connectors.
TRANSFERS = [
    (name, ("shared_memory", "tcp")[i % 2]) for i, name in enumerate(MODELS) if name not in RECURRENT | OWN_CACHE
]


@pytest.fixture(scope="module", params=MODELS)
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, LoadedModel, list[list[int]], list[list[int]]]:
    """A model's folder, the model, prompts, and what `generate` says to them."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(MODELS[request.param].config, folder)
    rng = random.Random(1)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 44))] for _ in range(8)]
    # Two begin alike, so that the second finds blocks of the first in the cache.
    prompts.append(prompts[0][:30] + prompts[1])
    # Loading takes longer than serving, and in float32 on the CPU no setting below changes what is loaded.
    loaded = load_model(EngineConfig(model=str(folder), dtype="float32", max_model_len=256))
    return folder, loaded, prompts, [greedy(model, prompt, MAX_TOKENS) for prompt in prompts]


# Prompts in chunks, some of them in chunks, and whole. Neither number is known to the code of a kind of model.
@pytest.mark.parametrize(("budget", "block_size"), [(16, 16), pytest.param(64, 8, marks=pytest.mark.slow), (2048, 16)])
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


# With its scope, this runs beside the other test of the same model, which is then made once.
@pytest.mark.parametrize(("tiny", "connector"), TRANSFERS, indirect=["tiny"], scope="module")
def test_a_prompt_that_another_engine_computed_goes_on_with_the_same_tokens(
    tiny: tuple[Path, LoadedModel, list[list[int]], list[list[int]]], connector: str
) -> None:
    folder, loaded, prompts, greedily = tiny
    budget = 16 if connector == "shared_memory" else 2048
    config = EngineConfig(
        model=str(folder), dtype="float32", block_size=8, max_num_batched_tokens=budget, kv_cache_tokens=96
    )
    sampled = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, seed=7)
    alone = Engine(config, loaded).generate(prompts[:4], sampled)
    prefill, decode = (
        Engine(replace(config, kv_transfer_config={"kv_role": role, "kv_connector": connector}), loaded)
        for role in ("kv_producer", "kv_consumer")
    )
    try:
        assert split(prefill, decode, prompts, SamplingParams(max_tokens=MAX_TOKENS, temperature=0)) == greedily
        assert split(prefill, decode, prompts[:4], sampled) == [output.token_ids for output in alone]
        stats = decode.stats()
        assert stats.kv_transfer is not None
        # The cache still has all that is needed of the first repeated prompt, so it is not brought again.
        assert stats.kv_transfer.imports == len(prompts) + 4 - 1
        num_blocks = sum(-(-len(prompt) // config.block_size) for prompt in prompts + prompts[:4])
        moved = stats.kv_transfer.bytes
        assert moved["received"] + moved["skipped"] == num_blocks * decode._runner.bytes_per_block
        assert sum(stats.kv_transfer.fallbacks.values()) == 0
        assert stats.preemptions > 0
        assert stats.blocks_used == 0
        assert eventually(lambda: exported_bytes(prefill) == 0)
    finally:
        prefill.close()
        decode.close()


def split(prefill: Engine, decode: Engine, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    """The tokens of prompts that one engine computes and another one continues."""
    asked = RequestOptions(kv_transfer_params=KVTransferParams(do_remote_decode=True))
    for number, prompt in enumerate(prompts):
        prefill.submit(prompt, replace(params, max_tokens=1), asked, request_id=str(number))
    offers = {name: output.kv_transfer_params for name, output in drain(prefill).items()}
    for number, prompt in enumerate(prompts):
        offer = offers[str(number)]
        assert offer is not None
        decode.submit(prompt, params, RequestOptions(kv_transfer_params=offer), request_id=str(number))
    outputs = drain(decode)
    return [outputs[str(number)].token_ids for number in range(len(prompts))]


def exported_bytes(engine: Engine) -> int:
    stats = engine.stats().kv_transfer
    assert stats is not None
    return stats.exported_bytes
