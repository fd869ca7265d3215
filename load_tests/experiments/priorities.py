"""Urgent requests that arrive while many less urgent requests run."""

from typing import TYPE_CHECKING

import numpy as np

from load_tests.arrivals import AllAtOnce, Gamma
from load_tests.experiments.experiment import Arm, Experiment, Results, Verdict
from load_tests.experiments.stage import SEED, Stage
from load_tests.lengths import Uniform
from load_tests.simulate.plots import ecdf
from load_tests.simulate.report import PREEMPTIONS, THROUGHPUT, Column
from load_tests.simulate.result import Result, percentile
from load_tests.traffic import Stream, merge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

URGENT = Uniform(32, 128), Uniform(16, 64)
CROWD = Uniform(256, 768), Uniform(256, 1024)
ALONE = "priority, no crowd"
BUDGET = 512
SWAP_TOKENS = 65_536
STEPS = 3
"""The running step, one step that an earlier prompt may fill, and the request's own step."""


def urgent_ttft(result: Result, percent: float) -> float:
    """Percentile of the time to first token of urgent requests, in seconds."""
    return percentile(result.select(np.array([a.priority == 1 for a in result.arrivals])), percent)


class PriorityInversion(Experiment):
    """A crowd of requests with priority 2 takes all slots at once. Urgent requests with priority 1 arrive one by
    one."""

    name = "priorities"
    title = "Time to first token of urgent requests, while a crowd runs and waits"
    claim = (
        "A queue by priority alone leaves inversion: an urgent request waits until less urgent ones that run have "
        "ended. Where it may preempt them it waits a few steps at most, and the crowd still finishes"
    )
    source = "priority inversion: Sha, Rajkumar and Lehoczky (1990); preemption for it in LLMs: FastServe (2023)"
    requests = 1000

    def arms(self, stage: Stage) -> list[Arm]:
        count = stage.requests(self.requests)
        crowd = Stream(AllAtOnce(), *stage.both(CROWD), priority=2).make(count // 2, SEED)
        seconds = len(crowd) / stage.rate(1.0, CROWD)
        rate = (count - len(crowd)) / seconds
        urgent = Stream(Gamma(rate), *stage.both(URGENT), priority=1).make(count - len(crowd), SEED)
        levels = {
            "priority_levels": 2,
            "default_priority_level": 2,
            "max_num_batched_tokens": stage.tokens(BUDGET),
        }
        # A high value keeps ageing from promoting the crowd: ageing is a separate guarantee.
        priority = {**levels, "scheduling_policy": "priority", "priority_ageing_seconds": 1e6}
        both = merge(crowd, urgent)
        swap = {**priority, "preemption_mode": "swap", "swap_space_tokens": stage.tokens(SWAP_TOKENS)}
        return [
            Arm("fcfs in levels", both, levels),
            Arm("priority", both, priority),
            Arm("priority, swap", both, swap),
            Arm(ALONE, urgent, priority),
        ]

    def columns(self, stage: Stage) -> list[Column]:
        p50 = Column("urgent TTFT p50, s", lambda r: urgent_ttft(r, 50), ".3f")
        p99 = Column("urgent TTFT p99, s", lambda r: urgent_ttft(r, 99), ".3f")
        done = Column("finished", lambda r: float(r.done.mean()), ".1%")
        return [THROUGHPUT, p50, p99, PREEMPTIONS, done]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        levels, priority, alone = (urgent_ttft(results[x], 99) for x in ("fcfs in levels", "priority", ALONE))
        limit = alone + STEPS * self.full_step(stage)
        return [
            Verdict(f"urgent TTFT p99: {levels:.3f} s in levels, {priority:.3f} s with preemption", priority < levels),
            Verdict(
                f"that is at most what an empty server takes and {STEPS} full steps: {alone:.3f} s, {limit:.3f} s",
                priority <= limit,
            ),
            Verdict("the crowd finishes", bool(results["priority"].done.all())),
        ]

    def full_step(self, stage: Stage) -> float:
        """Seconds of a step that uses the whole token budget and reads the keys of a full batch."""
        cost = stage.cost
        cached = stage.max_num_seqs * stage.tokens(CROWD[0].mean + CROWD[1].mean / 2)
        return cost.per_step + cost.per_token * stage.tokens(BUDGET) + cost.per_cached_token * cached

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        urgent = {
            label: result.select(np.array([a.priority == 1 for a in result.arrivals]))
            for label, result in results.items()
        }
        ecdf(axes, urgent, "time to first token of urgent requests, s")
        axes.legend()
