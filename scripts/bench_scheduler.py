"""What a step costs outside the model: `schedule()` and `commit()` by requests that run and that wait.

`python -m scripts.bench_scheduler`. Every combination runs decode-only steps of a full running set beside a queue that
can't be admitted; the times are medians over steps, the ratio is to a step of the default model at that batch size.
"""

import argparse
import itertools
import time
from statistics import median

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from inflight import SamplingParams
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.scheduler.scheduler import Scheduler
from inflight.scheduler.scheduler_config import SCHEDULING_POLICIES, SchedulerConfig

RUNNING = (8, 64, 512)
WAITING = (10, 1_000, 100_000)
PROMPT = list(range(100))
TENANTS = 50


def loaded_scheduler(policy: str, running: int, waiting: int) -> Scheduler:
    """A scheduler whose running set is full and decodes, with a queue behind it."""
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
            tenant=f"{number % TENANTS}",
            priority=levels.level(number % 3 + 1),
        )
        scheduler.add(request)
    while len(scheduler.running) < running or any(r.num_uncomputed > 1 for r in scheduler.running.values()):
        step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> float:
    """Plan and commit a step; the seconds that took."""
    started = time.perf_counter()
    plan = scheduler.schedule(0.0)
    scheduler.observe(plan, 0.02)
    scheduler.commit(plan, [7] * len(plan.sampling))
    return time.perf_counter() - started


def main() -> None:
    """Measure all combinations and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    table = Table(title="schedule() + observe() + commit(), ms a step (median)")
    for column in ("policy", "running", *(f"{count:,} waiting" for count in WAITING)):
        table.add_column(column, justify="right")
    combinations = list(itertools.product(SCHEDULING_POLICIES, RUNNING))
    for policy, running in tqdm(combinations, unit="row"):
        row = []
        for waiting in WAITING:
            scheduler = loaded_scheduler(policy, running, waiting)
            row.append(median(step(scheduler) for _ in range(steps)) * 1e3)
        table.add_row(policy, f"{running}", *(f"{ms:.3f}" for ms in row))
    Console().print(table)


if __name__ == "__main__":
    main()
