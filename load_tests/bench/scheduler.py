"""`python -m load_tests.bench.scheduler`: time of `schedule()` and `commit()` by running and waiting requests.

Every combination runs decode-only steps of a full running set beside a queue whose requests can't be admitted. Times
are medians over steps. The table also has the time of a step of the default model in the same run, and the ratio of
planning and committing with 1,000 waiting requests to it.
"""

import argparse
import itertools
import time
from statistics import median

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from inflight import Engine, EngineConfig, SamplingParams
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.scheduler_config import SCHEDULING_POLICIES, SchedulerConfig
from inflight.step_result import StepResult
from scripts.launch.default_model import default_model

RUNNING = (8, 64, 512)
WAITING = (10, 1_000, 100_000)
PROMPT = list(range(100))
TENANTS = 50
MODEL_STEPS = 20


def loaded_scheduler(policy: str, running: int, waiting: int) -> Scheduler:
    """A scheduler with a full running set of decodes and a queue of waiting requests."""
    config = SchedulerConfig(max_num_seqs=running, max_num_batched_tokens=running + 4096, scheduling_policy=policy)
    levels = QueuePolicies(priority_levels=3, default_priority_level=2) if policy == "priority" else QueuePolicies()
    blocks = running * 40
    tables = BlockTables(BlockPool(blocks), 16, prefix_caching=True)
    scheduler = Scheduler(config, tables, levels)
    for number in range(running + waiting):
        request = Request(
            f"{number}",
            [number % 50_000, *PROMPT],
            SamplingParams(),
            max_tokens=500,
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    table = Table(title="schedule() + observe() + commit(), ms a step (median)")
    for column in ("policy", "running", *(f"{count:,} waiting" for count in WAITING), "a step of the model", "share"):
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
