"""Compares the time of decode steps with the time to read weights and KV cache."""

import time
from pathlib import Path
from typing import Any

from inflight import Engine, SamplingParams
from scripts.gpu_check.check_result import CheckResult
from scripts.gpu_check.engines import bytes_of_a_step, bytes_of_a_token, engine, free_memory
from scripts.gpu_check.prompts import random_prompts

CONTEXT = 512
STEPS = 64
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    ", without graphs": {"enable_cuda_graphs": False},
    ", without kernels": {"enable_kernels": False},
}


def step_seconds(served: Engine, batch: int, context: int, steps: int) -> float:
    """Mean time of several steps in which `batch` requests decode."""
    params = SamplingParams(max_tokens=2 * steps + 1, temperature=0, ignore_eos=True)
    names = [served.submit(prompt, params) for prompt in random_prompts(batch, context, served.model.vocab_size)]
    begun: set[str] = set()
    while len(begun) < batch:
        begun.update(output.request_id for output in served.step())
    started = time.perf_counter()
    for _ in range(steps):
        served.step()
    seconds = (time.perf_counter() - started) / steps
    for name in names:
        served.cancel(name)
    served.step()
    return seconds


def results(
    name: str, folder: Path, device: str, bandwidth: float, bars: dict[int, float], *, context: int = CONTEXT
) -> list[CheckResult]:
    """For each batch size and configuration: the floor's fraction of the step time, which must reach its limit in
    `bars`."""
    found = []
    for way, settings in WAYS.items():
        served = engine(folder, device, max_num_seqs=max(bars), **settings)
        for batch, bar in bars.items():
            seconds = step_seconds(served, batch, context, STEPS)
            cached = batch * (context + STEPS / 2) * bytes_of_a_token(served)
            floor = (bytes_of_a_step(folder, served) + cached) / bandwidth
            note = f"{1000 * seconds:.2f} ms a step, floor {1000 * floor:.2f} ms"
            what = f"{name}, {batch} decodes: share of floor{way}"
            found.append(CheckResult(what, floor / seconds, min_value=None if way else bar, note=note))
        del served
        free_memory()
    return found
