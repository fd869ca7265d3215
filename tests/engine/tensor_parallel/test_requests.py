"""All kinds of requests come out of a divided model as out of a whole one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig

from inflight import Engine, EngineConfig, PoolingParams, RequestOutput, SamplingParams
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.parallel.workers import Workers
from scripts.reference.tiny_models import SERVED, VOCABULARY, save_model
from tests.engine.models import Tiny, drain, greedy, make_engine, make_prompt, tokens
from tests.engine.test_quantized_checkpoints import EXPERTS

PROMPTS = [make_prompt(length) for length in (40, 3, 25, 31)]
SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "block_size": 8, "kv_cache_tokens": 1024}


@pytest.fixture(scope="module")
def divided(tiny: Tiny, one_worker: Workers) -> DividedModel:
    return DividedModel(EngineConfig(model=str(tiny.folder), tensor_parallel_size=2, **SETTINGS), one_worker)


def engines(tiny: Tiny, divided: DividedModel, **settings: Any) -> tuple[Engine, Engine]:
    """A divided engine and a whole one."""
    config = EngineConfig(model=str(tiny.folder), tensor_parallel_size=2, **{**SETTINGS, **settings})
    return Engine(config, divided), tiny.engine(**settings)


def test_sampled_tokens_and_logprobs_are_the_same(tiny: Tiny, divided: DividedModel) -> None:
    params = [SamplingParams(max_tokens=12, seed=seed, temperature=1.0, logprobs=3) for seed in range(len(PROMPTS))]
    mine, other = (each.generate(PROMPTS, params) for each in engines(tiny, divided))
    assert tokens(mine) == tokens(other)
    assert chosen(mine) == pytest.approx(chosen(other), abs=1e-4)


def chosen(outputs: list[RequestOutput]) -> list[float]:
    return [entry.chosen for output in outputs for entry in output.logprobs]


def test_prompts_are_scored_the_same(tiny: Tiny, divided: DividedModel) -> None:
    """The head of a divided model gives each rank some columns, so all ranks take part."""
    params = greedy(2, prompt_logprobs=2)
    mine, other = (each.generate(PROMPTS, params) for each in engines(tiny, divided, max_num_batched_tokens=16))
    for one, two in zip(mine, other, strict=True):
        assert prompt_logprobs(one) == pytest.approx(prompt_logprobs(two), abs=1e-4)


def prompt_logprobs(output: RequestOutput) -> list[float]:
    return [entry.chosen for entry in output.prompt_logprobs if entry is not None]


def test_embeddings_are_the_same(tiny: Tiny, divided: DividedModel) -> None:
    found = []
    for engine in engines(tiny, divided, max_num_batched_tokens=16):
        for number, prompt in enumerate(PROMPTS):
            engine.submit_embedding(prompt, PoolingParams(), request_id=str(number))
        outputs = drain(engine)
        found.append(np.array([outputs[str(number)].embedding for number in range(len(PROMPTS))]))
    np.testing.assert_allclose(*found, atol=1e-5)


def test_drafts_are_verified_the_same(tiny: Tiny, divided: DividedModel) -> None:
    settings = {"speculative_config": {"method": "ngram", "adaptive": False}}
    engine, _ = engines(tiny, divided, **settings)
    repeating = [prompt[:6] * 5 for prompt in PROMPTS]
    assert tokens(engine.generate(repeating, greedy(30))) == tokens(tiny.engine().generate(repeating, greedy(30)))
    assert engine.stats().draft_tokens > 0


def test_a_vocabulary_that_does_not_divide_is_divided_unevenly(tmp_path: Path, one_worker: Workers) -> None:
    config = type(SERVED["llama"].config)(**{**SERVED["llama"].config.to_diff_dict(), "vocab_size": VOCABULARY + 3})
    save_model(config, tmp_path)
    settings = EngineConfig(model=str(tmp_path), tensor_parallel_size=2, **SETTINGS)
    engine = Engine(settings, DividedModel(settings, one_worker))
    assert engine.model.vocab_size == VOCABULARY + 3
    prompts = [[*prompt, VOCABULARY + 2] for prompt in PROMPTS]
    assert tokens(engine.generate(prompts, greedy(12))) == tokens(make_engine(tmp_path).generate(prompts, greedy(12)))


def test_int4_leaves_the_head_and_its_embeddings_as_they_are(
    tmp_path: Path, one_worker: Workers, cpu_kernels: None
) -> None:
    config = type(SERVED["llama"].config)(**{**SERVED["llama"].config.to_diff_dict(), "tie_word_embeddings": True})
    wanted = save_model(config, tmp_path).get_input_embeddings().weight[: VOCABULARY // 2].bfloat16()
    settings = {**SETTINGS, "dtype": "bfloat16", "block_size": 16, "quantization": "int4"}
    each = EngineConfig(model=str(tmp_path), tensor_parallel_size=2, **settings)
    engine = Engine(each, DividedModel(each, one_worker))
    assert torch.equal(engine.model.module.get_input_embeddings().weight, wanted)
    assert engine.model.module.lm_head.linear.group.scales is not None  # In int8, each output has one.


def test_experts_may_be_too_odd_in_width_once_they_are_divided(tmp_path: Path, one_worker: Workers) -> None:
    """Rows of 24 bfloat16 suit torch's product of all experts, and those of 12 do not."""
    save_model(Qwen3MoeConfig(**{**EXPERTS, "moe_intermediate_size": 24}), tmp_path)
    config = EngineConfig(model=str(tmp_path), tensor_parallel_size=2, **{**SETTINGS, "dtype": "bfloat16"})
    outputs = Engine(config, DividedModel(config, one_worker)).generate(PROMPTS, greedy(8, ignore_eos=True))
    assert [len(output.token_ids) for output in outputs] == [8] * len(PROMPTS)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_cpu_kernels_serve_a_traced_graph(
    tiny: Tiny, one_worker: Workers, cpu_kernels: None, quantization: str | None
) -> None:
    settings = {"dtype": "bfloat16", "block_size": 16, "quantization": quantization}
    config = EngineConfig(model=str(tiny.folder), tensor_parallel_size=2, **{**SETTINGS, **settings})
    engine = Engine(config, DividedModel(config, one_worker))
    assert isinstance(engine.model.forward, TracedForward)
    mine, other = (each.generate(PROMPTS, greedy(1, prompt_logprobs=0)) for each in (engine, tiny.engine(**settings)))
    for one, two in zip(mine, other, strict=True):
        # The ranks' sums are rounded to bfloat16 before they are added.
        assert prompt_logprobs(one) == pytest.approx(prompt_logprobs(two), abs=0.1)
