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
GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLED: dict[str, Any] = {"temperature": 1, "top_p": 0.95}
"""What many chat clients ask for."""


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


def ours(folder: Path, device: str, workload: OfflineWorkload, *samplings: dict[str, Any]) -> list[float]:
    """Tokens per second of this engine, with each of the given sampling parameters."""
    # The prompts are the same each time, and all of them shall be computed.
    served = engine(folder, device, enable_prefix_caching=False)
    found = []
    for sampling in samplings:
        params = [SamplingParams(max_tokens=length, ignore_eos=True, **sampling) for length in workload.lengths]
        served.generate([[1, 2, 3]] * 4, SamplingParams(max_tokens=8, ignore_eos=True, **sampling))
        started = time.perf_counter()
        served.generate(workload.prompts, params)
        found.append(sum(workload.lengths) / (time.perf_counter() - started))
    return found


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
    """Throughput of both and their ratio. transformers runs for `seconds`. The bar is for greedy tokens."""
    greedy, sampled = ours(folder, device, workload, GREEDY, SAMPLED)
    free_memory()
    theirs = transformers(folder, device, workload, seconds)
    free_memory()
    what = f"{name}, {workload.name}, {len(workload.prompts)} requests"
    drawn = ", ".join(f"{key} {value}" for key, value in SAMPLED.items())
    return [
        CheckResult(what, greedy, "output tokens/s", min_value=min_value, note="greedy"),
        CheckResult(f"{what}, {drawn}", sampled, "output tokens/s", note=f"{sampled / greedy:.2f} of greedy"),
        CheckResult(f"{what}: transformers", theirs, "output tokens/s", note=f"continuous batching, {ATTENTION}"),
        CheckResult(f"{what}: ours to transformers", greedy / theirs),
    ]
