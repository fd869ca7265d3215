"""Batches with padding and without, for comparison with ours."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from inflight.scheduler.plan import StepPlan
from load_tests.simulate.result import Result
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Arrival


class Packed(StepCost):
    """A machine that computes no padding, whatever the batching strategy."""

    def seconds(self, plan: StepPlan) -> float:
        """Duration of a step without its padding."""
        return super().seconds(replace(plan, padding=0))


def generate(folder: Path, arrivals: Sequence[Arrival], slots: int) -> Result:
    """Serve requests, all of which are there from the start, by `generate` of transformers, `slots` at a time.

    Prompts are padded left to the longest of their batch, and a batch runs until its longest output is complete. All
    its tokens come at its end.
    """
    # Imported here so that a simulation needs no torch.
    from scripts.peers.transformers_server import load_model, load_tokenizer, static_batch

    model, tokenizer = load_model(folder), load_tokenizer(folder)
    static_batch(model, tokenizer, [[1] * 8] * slots, 4)  # Warms up.
    ends, computed = [], 0
    start = time.monotonic()
    for first in tqdm(range(0, len(arrivals), slots), unit="batch", leave=False):
        batch = arrivals[first : first + slots]
        steps = max(arrival.output_tokens for arrival in batch)
        static_batch(model, tokenizer, [[1] * arrival.prompt_tokens for arrival in batch], steps)
        ends += [time.monotonic() - start] * len(batch)
        computed += len(batch) * (max(arrival.prompt_tokens for arrival in batch) + steps - 1)
    prompt = np.array([arrival.prompt_tokens for arrival in arrivals])
    output = np.array([arrival.output_tokens for arrival in arrivals])
    none = np.zeros(len(arrivals), dtype=np.int64)
    return Result(
        arrivals=arrivals,
        arrival=np.zeros(len(arrivals)),
        prompt=prompt,
        output=output,
        first_token=np.array(ends),
        finish=np.array(ends),
        cached=none,
        preemptions=none,
        gaps=np.empty(0),
        gap_counts=np.empty(0, dtype=np.int64),
        gap_tenants=np.empty(0, dtype=np.int64),
        samples=[],
        steps=0,
        step_seconds=ends[-1],
        padding_tokens=computed - int((prompt + output - 1).sum()),
        swaps=0,
    )
