"""Output tokens per second with many requests at once, for this engine and for transformers' continuous batching."""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from inflight import SamplingParams
from scripts.gpu_check.ceilings import finish
from scripts.gpu_check.check_result import CheckResult
from scripts.gpu_check.engines import engine, free_memory

ANSWER_SECONDS = 120.0
ATTENTION = "sdpa"


@dataclass(frozen=True)
class OfflineWorkload:
    """Prompts, and the number of output tokens for each."""

    name: str
    prompts: list[list[int]]
    lengths: list[int]


def nano_vllm(count: int, longest: int, vocabulary: int) -> OfflineWorkload:
    """nano-vllm's benchmark: prompt and output lengths uniform in 100..1024, seed 0."""
    chance = random.Random(0)
    shortest = min(100, longest)
    prompts = [[chance.randrange(vocabulary) for _ in range(chance.randint(shortest, longest))] for _ in range(count)]
    return OfflineWorkload("nano-vllm's workload", prompts, [chance.randint(shortest, longest) for _ in range(count)])


def fixed(count: int, length: int, vocabulary: int) -> OfflineWorkload:
    """Prompts and outputs of one length."""
    chance = random.Random(0)
    prompts = [[chance.randrange(vocabulary) for _ in range(length)] for _ in range(count)]
    return OfflineWorkload(f"{length} in, {length} out", prompts, [length] * count)


def ours(folder: Path, device: str, workload: OfflineWorkload, **settings: Any) -> float:
    """Tokens per second of this engine."""
    served = engine(folder, device, **settings)
    params = [SamplingParams(max_tokens=length, temperature=0, ignore_eos=True) for length in workload.lengths]
    served.generate([[1, 2, 3]] * 4, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    started = time.perf_counter()
    served.generate(workload.prompts, params)
    return sum(workload.lengths) / (time.perf_counter() - started)


def transformers(folder: Path, device: str, workload: OfflineWorkload, seconds: float) -> float:
    """Tokens per second of transformers, measured over `seconds`."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation=ATTENTION)
    model.to(device)
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),  # type: ignore[no-untyped-call]
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=64 if device == "cpu" else None),
    )
    manager.start()
    try:
        manager.add_request([1, 2, 3], max_new_tokens=8)
        manager.get_result(timeout=ANSWER_SECONDS)
        started = time.perf_counter()
        for prompt, length in zip(workload.prompts, workload.lengths, strict=True):
            manager.add_request(prompt, max_new_tokens=length, streaming=True)
        seen: dict[str, int] = {}
        ended = 0
        while ended < len(workload.prompts) and time.perf_counter() - started < seconds:
            result = manager.get_result(timeout=ANSWER_SECONDS)
            if result is None or result.error:
                raise RuntimeError(f"transformers' continuous batching gave no answer: {result and result.error}")
            seen[result.request_id] = len(result.generated_tokens)
            ended += result.is_finished()
        taken = time.perf_counter() - started
    finally:
        manager.stop(block=True)
    finish(device)
    return sum(seen.values()) / taken


def results(
    name: str, folder: Path, device: str, workload: OfflineWorkload, *, seconds: float, min_value: float | None = None
) -> list[CheckResult]:
    """Throughput of both and their ratio. transformers runs for `seconds`."""
    mine = ours(folder, device, workload)
    free_memory()
    theirs = transformers(folder, device, workload, seconds)
    free_memory()
    what = f"{name}, {workload.name}, {len(workload.prompts)} requests"
    return [
        CheckResult(what, mine, "output tokens/s", min_value=min_value),
        CheckResult(f"{what}: transformers", theirs, "output tokens/s", note=f"continuous batching, {ATTENTION}"),
        CheckResult(f"{what}: ours to transformers", mine / theirs),
    ]
