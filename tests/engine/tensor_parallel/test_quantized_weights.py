"""Each rank of a divided model has its part of the weights for which a quantized checkpoint stands."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen3MoeConfig

from inflight import Engine, EngineConfig
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.parallel.workers import Workers
from scripts.reference.tiny_models import SERVED
from scripts.reference.tiny_models import greedy as reference
from tests.engine.models import make_prompt
from tests.engine.test_quantized_checkpoints import EXPERTS, FORMATS, answers, plain, quantize, quantize_gpt_oss

LLAMA, MIXTURE = SERVED["llama"].config, Qwen3MoeConfig(**EXPERTS)


def check(config: PreTrainedConfig, weights: dict[str, torch.Tensor], folder: Path, workers: Workers) -> Engine:
    """Check the checkpoint in `folder / "quantized"`, whose weights are `weights`. Return a divided engine."""
    settings = EngineConfig(
        model=str(folder / "quantized"),
        dtype="float32",
        device="cpu",
        block_size=8,
        kv_cache_tokens=1024,
        tensor_parallel_size=workers.size,
    )
    engine = Engine(settings, DividedModel(settings, workers))
    assert {weight.dtype for weight in engine.model.module.parameters()} == {torch.float32}
    module = AutoModelForCausalLM.from_pretrained(plain(config, weights, folder / "plain"), dtype=torch.float32)
    assert answers(engine) == [reference(module, make_prompt(length), 16) for length in (3, 17, 40)]
    return engine


# Rows of 96 inputs are divided in the middle of a group of 32 with one scale.
@pytest.mark.parametrize(
    ("config", "form"),
    [
        (LLAMA, "gptq with desc_act"),
        (LLAMA, "awq"),
        (LLAMA, "nf4 with double quantization"),
        (LLAMA, "fp8"),
        (LLAMA, "fp8 with one scale"),
        (LLAMA, "compressed-tensors in int4"),
        (MIXTURE, "fp8"),
        (MIXTURE, "compressed-tensors in int4"),
        (MIXTURE, "compressed-tensors in int4 with zero points"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_two_ranks_say_what_the_dequantized_model_says(
    config: PreTrainedConfig, form: str, one_worker: Workers, tmp_path: Path
) -> None:
    check(config, quantize(config, FORMATS[form], tmp_path / "quantized"), tmp_path, one_worker)


def test_two_ranks_divide_experts_in_mxfp4(one_worker: Workers, tmp_path: Path) -> None:
    config, weights = SERVED["gpt_oss"].config, quantize_gpt_oss(tmp_path / "quantized")
    module = check(config, weights, tmp_path, one_worker).model.module
    mine = sum(weight.numel() for weight in module.parameters())
    assert mine < 0.52 * sum(weight.numel() for weight in weights.values())
