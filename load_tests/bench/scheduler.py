"""`python -m load_tests.bench.scheduler`: time of planning, batching and committing by the number of requests.

Every combination runs decode-only steps of a full running set. The first table has the time that a step spends outside
the model, by its parts, for short and long contexts. In the second table, a queue waits whose requests can't be
admitted. Its times are medians over steps. It also has the time of a step of the default model in the same run, and the
ratio of planning and committing with 1,000 waiting requests to it.
"""

import argparse
import itertools
import time
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from inflight import Engine, EngineConfig, SamplingParams
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.model.attention.tiles import make_tiles
from inflight.model.batch_arrays import BatchArrays
from inflight.model.ragged_batch import RaggedBatch
from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.scheduler_config import SCHEDULING_POLICIES, SchedulerConfig
from inflight.step_result import StepResult
from load_tests.option_types import count
from scripts.launch.default_model import default_model

RUNNING = (8, 64, 512)
WAITING = (10, 1_000, 100_000)
PROMPT = list(range(100))
CONTEXTS = ((64, 200), (256, 200), (64, 8192), (256, 8192))
"""Running requests, and the tokens that each has cached."""
BLOCK_SIZE = 16
OUTPUT = 500
TENANTS = 50
CLASSES = {
    "chat": {"target_itl_ms": 1e3},
    "night": {"tenants": [f"{n}" for n in range(0, TENANTS, 2)], "leftover": True},
}
MODEL_STEPS = 20


def loaded_scheduler(policy: str, running: int, waiting: int, prompt: list[int] = PROMPT) -> Scheduler:
    """A scheduler with a full running set of decodes and a queue of waiting requests.

    Their prompts are up to 15 tokens longer than `prompt`, so that they fill their blocks in different steps.
    """
    prompts = running * (len(prompt) + BLOCK_SIZE)  # All prompts fit into one step, so that nobody finishes before.
    config = SchedulerConfig(
        max_num_seqs=running,
        max_num_batched_tokens=prompts,
        scheduling_policy=policy,
        request_classes=CLASSES if policy == "classes" else {},
    )
    levels = QueuePolicies(priority_levels=3, default_priority_level=2) if policy == "priority" else QueuePolicies()
    blocks = running * (2 + (len(prompt) + OUTPUT) // BLOCK_SIZE)
    tables = BlockTables(BlockPool(blocks), BLOCK_SIZE, prefix_caching=True)
    scheduler = Scheduler(config, tables, levels)
    for number in range(running + waiting):
        request = Request(
            f"{number}",
            [number % 50_000, *prompt, *range(number % BLOCK_SIZE)],
            SamplingParams(),
            max_tokens=OUTPUT,
            seed=0,
            arrival=number / 1000,
            options=RequestOptions(tenant=f"{number % TENANTS}"),
            priority=levels.level(number % 3 + 1),
        )
        scheduler.add(request)
    while len(scheduler.running) < running or any(r.num_uncomputed > 1 for r in scheduler.running.values()):
        step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> float:
    """Plan and commit a step. Return the seconds that this took."""
    started = time.perf_counter()
    plan = scheduler.schedule(0.0)
    scheduler.observe(plan, 0.02)
    scheduler.commit(plan, [StepResult((7,))] * len(plan.sampling), 0.0)
    return time.perf_counter() - started


def timed_parts(scheduler: Scheduler) -> NDArray[np.float64]:
    """Run a step without a model. Return the seconds of planning, layout, tensors, attention's tiles and commit."""
    stamps = [time.perf_counter()]
    plan = scheduler.schedule(0.0)
    stamps.append(time.perf_counter())
    arrays = BatchArrays.of(plan, BLOCK_SIZE)
    stamps.append(time.perf_counter())
    batch = RaggedBatch.on(torch.device("cpu"), arrays)
    stamps.append(time.perf_counter())
    make_tiles(batch.query_starts, batch.context_lens, range(batch.num_rows), 1)
    stamps.append(time.perf_counter())
    scheduler.observe(plan, 0.02)
    scheduler.commit(plan, [StepResult((7,))] * len(plan.sampling), 0.0)
    stamps.append(time.perf_counter())
    return np.diff(stamps)


def parts_table(steps: int) -> Table:
    """The first table. In 16 steps, every request fills one block; each has the smallest time of many such steps.

    A GPU has nothing to do in the time before the model.
    """
    table = Table(title="a decode step outside the model, µs")
    for column in ("running", "tokens each", "plan", "layout", "tensors", "tiles", "before the model", "commit"):
        table.add_column(column, justify="right")
    for running, context in CONTEXTS:
        scheduler = loaded_scheduler("fcfs", running, 0, list(range(context)))
        seconds = np.array([timed_parts(scheduler) for _ in range(steps // BLOCK_SIZE * BLOCK_SIZE)])
        parts = seconds.reshape(-1, BLOCK_SIZE, seconds.shape[1]).min(axis=0).mean(axis=0) * 1e6
        *before, commit = parts
        table.add_row(f"{running}", f"{context:,}", *(f"{part:.0f}" for part in (*before, sum(before), commit)))
    return table


def model_step_seconds(running: int, steps: int) -> float:
    """Median time of a decode step of the default model, including planning and committing."""
    engine = Engine(EngineConfig(str(default_model()), max_num_seqs=running, kv_cache_tokens=running * 200))
    for _ in range(running):
        engine.submit(PROMPT, SamplingParams(max_tokens=steps + 40, ignore_eos=True, temperature=0))
    while engine.stats().decode_tokens < running:
        engine.step()
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def main() -> None:
    """Measure all combinations and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=count, default=200)
    steps = parser.parse_args().steps
    Console().print(parts_table(steps))
    table = Table(title="schedule() + observe() + commit(), ms a step (median)")
    for column in ("policy", "running", *(f"{many:,} waiting" for many in WAITING), "a step of the model", "share"):
        table.add_column(column, justify="right")
    model_ms = {running: model_step_seconds(running, MODEL_STEPS) * 1e3 for running in RUNNING}
    combinations = list(itertools.product(SCHEDULING_POLICIES, RUNNING))
    for policy, running in tqdm(combinations, unit="row"):
        row = []
        for waiting in WAITING:
            scheduler = loaded_scheduler(policy, running, waiting)
            row.append(median(step(scheduler) for _ in range(steps)) * 1e3)
        model = model_ms[running]
        table.add_row(policy, f"{running}", *(f"{ms:.3f}" for ms in row), f"{model:.1f}", f"{row[1] / model:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
