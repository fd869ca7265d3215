"""A divided model gives the tokens of transformers' `generate`, under small budgets, scarce caches and preemption."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import transformers as t

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.parallel.workers import Workers
from scripts.reference.tiny_models import SERVED, VOCABULARY, greedy, save_model
from tests.of_each_kind import a_few_of

MAX_TOKENS = 12
# transformers has no plan for it.
DIVIDED = [name for name in SERVED if name != "gpt2"]
WITH_EIGHT_HEADS: dict[str, Any] = {
    "llama": t.LlamaConfig,
    "qwen3": t.Qwen3Config,
    "gemma2": t.Gemma2Config,
}
# Short chunks with blocks that are computed again, and longer ones with blocks that are swapped. Neither cache has room
# for more than two of the requests.
LOADS: tuple[dict[str, Any], ...] = (
    {"block_size": 16, "max_num_batched_tokens": 16, "preemption_mode": "recompute"},
    {"block_size": 8, "max_num_batched_tokens": 64, "preemption_mode": "swap", "swap_space_tokens": 64},
)


def check(folder: Path, config: t.PreTrainedConfig, workers: Workers, loads: Sequence[dict[str, Any]]) -> None:
    module = save_model(config, folder)
    rng = random.Random(1)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 44))] for _ in range(5)]
    # Two begin alike, so that the second finds blocks of the first in the cache.
    prompts.append(prompts[0][:30] + prompts[1])
    expected = [greedy(module, prompt, MAX_TOKENS) for prompt in prompts]
    common = {"model": str(folder), "dtype": "float32", "tensor_parallel_size": workers.size, "kv_cache_tokens": 96}
    configs = [EngineConfig(**common, **load) for load in loads]
    divided = DividedModel(configs[0], workers)
    for each in configs:
        engine = Engine(each, divided)
        outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, temperature=0))
        assert [output.token_ids for output in outputs] == expected
        stats = engine.stats()
        assert stats.preemptions > 0
        assert (stats.swaps > 0) == (each.preemption_mode == "swap")
        assert stats.blocks_used == 0


@pytest.mark.parametrize("name", a_few_of(DIVIDED))
def test_two_ranks_say_what_generate_says(name: str, one_worker: Workers, tmp_path: Path) -> None:
    # Both loads for the first one, and then one each.
    number = DIVIDED.index(name)
    check(tmp_path, SERVED[name].config, one_worker, [LOADS[number % 2]] if number else LOADS)


@pytest.mark.parametrize("name", ["qwen2", "gemma2"])
def test_ranks_share_the_only_kv_head(name: str, one_worker: Workers, tmp_path: Path) -> None:
    config = SERVED[name].config
    alone = type(config)(**{**config.to_diff_dict(), "num_key_value_heads": 1})
    check(tmp_path, alone, one_worker, LOADS[:1])


@pytest.fixture(scope="module")
def three_workers() -> Iterator[Workers]:
    """Ranks 1 to 3 of four."""
    workers = Workers(4)
    yield workers
    workers.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EIGHT_HEADS)
def test_four_ranks_say_what_generate_says(name: str, three_workers: Workers, tmp_path: Path) -> None:
    kind = WITH_EIGHT_HEADS[name]
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
    check(tmp_path, kind(**{**SERVED[name].config.to_diff_dict(), **heads}), three_workers, LOADS[:1])


@pytest.mark.slow
def test_four_ranks_share_two_kv_heads(three_workers: Workers, tmp_path: Path) -> None:
    check(tmp_path, SERVED["llama"].config, three_workers, LOADS)
