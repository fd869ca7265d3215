"""Compares tokens on the device with those of transformers, and attention with float64."""

import random
from pathlib import Path

import torch

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.attention import backend
from scripts.gpu_check.check_result import CheckResult
from scripts.reference.dense_attention import CASES, worst_error
from scripts.reference.tiny_models import SERVED, VOCABULARY, greedy, save_model

TOKENS = 20
ERRORS = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def attention(device: str) -> list[CheckResult]:
    """The largest error of the kernels over all cases, for each dtype."""
    attend = backend.CUDA_KERNELS.attend
    found = []
    for dtype, bound in ERRORS.items():
        if device == "cpu" and dtype == torch.bfloat16:
            continue  # NumPy interprets the kernels there, and it has no bfloat16.
        errors = {name: worst_error(case, dtype, attend, device=torch.device(device)) for name, case in CASES.items()}
        worst = max(errors, key=lambda name: errors[name])
        found.append(CheckResult(f"attention in {dtype}, largest error", errors[worst], max_value=bound, note=worst))
    return found


def prompts() -> list[list[int]]:
    """Prompts of many lengths."""
    chance = random.Random(1)
    return [[chance.randrange(3, VOCABULARY) for _ in range(chance.randint(1, 44))] for _ in range(9)]


def tokens(folder: Path, device: str, *, kinds: int | None = None) -> list[CheckResult]:
    """Compare the tokens of tiny models with those of transformers' `generate` on the CPU.

    In float32 the result is the fraction of requests with the same tokens. In bfloat16 a near tie can select another
    token, and all tokens after it then differ. So the bfloat16 result counts the models whose logits pass the engine's
    own check, which the engine makes before it uses the kernels.
    """
    same = total = by_kernels = 0
    missed = []
    chosen = list(SERVED.items())[:kinds]
    for name, kind in chosen:
        model = save_model(kind.config, folder / name)
        wanted = [greedy(model, prompt, TOKENS) for prompt in prompts()]
        served = Engine(EngineConfig(str(folder / name), device=device, dtype="float32", kv_cache_tokens=96))
        outputs = served.generate(prompts(), SamplingParams(max_tokens=TOKENS, temperature=0))
        right = sum(output.token_ids == tokens for output, tokens in zip(outputs, wanted, strict=True))
        same, total = same + right, total + len(wanted)
        if right < len(wanted):
            missed.append(name)
        half = Engine(EngineConfig(str(folder / name), device=device, dtype="bfloat16", kv_cache_tokens=96))
        half.generate(prompts(), SamplingParams(max_tokens=TOKENS, temperature=0))
        by_kernels += half.model.backend is not backend.TORCH
    return [
        CheckResult("requests with transformers' tokens, float32", same / total, min_value=1, note=", ".join(missed)),
        CheckResult("models that the kernels serve, bfloat16", by_kernels, f"of {len(chosen)}", min_value=len(chosen)),
    ]
