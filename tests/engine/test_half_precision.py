"""In half precision, outputs are finite and plausible, though not bit for bit those of float32."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import BeamConfig

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.attention.backend import TORCH
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.forward import EagerForward, Outputs
from inflight.model.loading.loader import load_model
from inflight.model.loading.reading import with_our_attention
from inflight.model.loading.self_check import LONGEST, SelfCheck
from inflight.model.ragged_batch import RaggedBatch
from scripts.launch.default_model import default_model
from scripts.reference.tiny_models import VOCABULARY, save_model
from tests.engine.models import Tiny, drain, greedy, make_engine, make_prompt


@pytest.fixture(scope="module")
def bfloat16() -> Engine:
    """The default model in bfloat16, the dtype of its checkpoint."""
    return make_engine(default_model(), dtype="auto", kv_cache_tokens=2048)


def test_dtype_auto_uses_the_dtype_of_the_checkpoint(bfloat16: Engine) -> None:
    assert str(bfloat16.model.dtype) == "torch.bfloat16"


def test_a_likely_answer_survives_rounding(bfloat16: Engine) -> None:
    # The prompt is not a question, because an answer to a question could begin in several equally likely ways.
    (output,) = bfloat16.generate("The capital of France is", greedy(5, logprobs=2))
    assert output.logprobs is not None
    first, second = output.logprobs[0].top.values()
    assert first - second > 1
    assert output.text.startswith(" Paris")


def test_requests_in_ragged_batches_finish_with_finite_logprobs(bfloat16: Engine) -> None:
    prompts = ["Hi", "The three primary colours are " * 6, "1, 2, 3, 4,", "Once upon a time"]
    params = [greedy(8, logprobs=5), SamplingParams(max_tokens=8, temperature=1.0, top_p=0.9, seed=1, logprobs=5)] * 2
    for output in bfloat16.generate(prompts, params):
        assert output.finish_reason in ("length", "stop")
        assert output.logprobs
        for entry in output.logprobs:
            assert all(math.isfinite(value) and value <= 0 for value in [entry.chosen, *entry.top.values()])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_preempted_and_chunked_requests_finish_with_finite_logprobs(tiny: Tiny, dtype: str) -> None:
    engine = tiny.engine(dtype=dtype, kv_cache_tokens=96, max_num_batched_tokens=16)
    for seed in range(5):
        engine.submit(make_prompt(30 + seed, seed=seed), greedy(40, logprobs=1, ignore_eos=True), request_id=str(seed))
    finished = drain(engine)
    assert {len(output.token_ids) for output in finished.values()} == {40}
    assert all(math.isfinite(entry.chosen) for output in finished.values() for entry in output.logprobs or ())
    assert engine.stats().preemptions > 0


@dataclass(frozen=True)
class OtherExperts(EagerForward):
    """Computes one token of a long chunk as if rounding had routed it to other experts."""

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        outputs = super().__call__(batch, caches, rows)
        if len(batch.token_ids) > 10:
            outputs.logits[-1] *= 2
        return outputs


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_token_may_differ_in_half_precision_also_where_logits_are_float32(dtype: str, tmp_path: Path) -> None:
    """Beam caps its logits in float32. Its own code routes tokens by numbers that were rounded to bfloat16."""
    config = BeamConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        sliding_window=8,
        max_position_embeddings=256,
    )
    save_model(config, tmp_path)
    model = load_model(EngineConfig(model=str(tmp_path), dtype=dtype, device="cpu", enable_kernels=False))
    readings, _ = with_our_attention(model.module, model.module.config, LONGEST)
    check = SelfCheck(model.module, readings, model.max_model_len)
    other = OtherExperts(model.module, TORCH, [layer.window for layer in model.layers])
    assert check.passes(other, model.layers, TORCH) == (dtype == "bfloat16")
