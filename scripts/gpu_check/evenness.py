"""Measures how evenly tokens arrive while long prompts are computed."""

import time
from pathlib import Path

import numpy as np

from inflight import Engine, SamplingParams
from scripts.gpu_check.check_result import CheckResult
from scripts.gpu_check.engines import engine, free_memory
from scripts.gpu_check.prompts import random_prompts

DECODES = 32
PERIOD_SECONDS = 0.5
BUDGET = 512


def gaps(served: Engine, seconds: float, prompts: list[list[int]]) -> list[float]:
    """Seconds between the tokens of the decoding requests, while the prompts arrive one by one."""
    begun, last, found = time.perf_counter(), 0.0, []
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    waiting = list(prompts)
    while (now := time.perf_counter() - begun) < seconds:
        if waiting and now >= (len(prompts) - len(waiting)) * PERIOD_SECONDS:
            served.submit(waiting.pop(), params)
        served.step()
        # Every step includes all decoding requests, so the step times are the gaps between tokens.
        ended = time.perf_counter() - begun
        found.append(ended - last)
        last = ended
    return found[1:]


def results(name: str, folder: Path, device: str, *, length: int, seconds: float) -> list[CheckResult]:
    """p99 of the gaps while prompts of that length arrive, divided by p50 of the gaps without prompts."""
    served = engine(folder, device, max_num_batched_tokens=BUDGET)
    vocabulary = served.model.vocab_size
    params = SamplingParams(max_tokens=7000, temperature=0, ignore_eos=True)
    for prompt in random_prompts(DECODES, 64, vocabulary):
        served.submit(prompt, params)
    gaps(served, 1.0, [])
    undisturbed = float(np.percentile(gaps(served, seconds, []), 50))
    disturbed = gaps(served, seconds, random_prompts(int(seconds / PERIOD_SECONDS), length, vocabulary, seed=1))
    p99 = float(np.percentile(disturbed, 99))
    del served
    free_memory()
    note = f"p50 undisturbed {1000 * undisturbed:.1f} ms, p99 {1000 * p99:.1f} ms, {BUDGET} tokens a step"
    what = f"{name}, {DECODES} decodes while prompts of {length} tokens arrive: ITL p99 to undisturbed p50"
    return [CheckResult(what, p99 / undisturbed, max_value=2.0, note=note)]
