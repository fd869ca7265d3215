"""Urgent requests that arrive while many less urgent requests run."""

from typing import TYPE_CHECKING

import numpy as np

from load_tests.arrivals import AllAtOnce, Floats, Gamma
from load_tests.experiments.estimate import difference, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.plots import pooled
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
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


def urgent_ttft(result: Result) -> Floats:
    """Times to first token of urgent requests, in seconds, shape [urgent requests]."""
    return result.select(np.array([a.priority == 1 for a in result.arrivals]))


URGENT_P50 = Column("urgent TTFT p50, s", lambda r: percentile(urgent_ttft(r), 50), ".3f")
URGENT_P99 = Column("urgent TTFT p99, s", lambda r: percentile(urgent_ttft(r), 99), ".3f")


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
    requests = 400

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        count = stage.requests(self.requests)
        crowd = Stream(AllAtOnce(), *stage.both(CROWD), priority=2).make(count // 2, (seed, 2))
        seconds = len(crowd) / stage.rate(1.0, CROWD)
        rate = (count - len(crowd)) / seconds
        urgent = Stream(Gamma(rate), *stage.both(URGENT), priority=1).make(count - len(crowd), (seed, 1))
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
        done = Column("finished", lambda r: float(r.done.mean()), ".1%")
        return [THROUGHPUT, URGENT_P50, URGENT_P99, PREEMPTIONS, done]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        levels, priority, alone = (results[label] for label in ("fcfs in levels", "priority", ALONE))
        share, longer = ratio(URGENT_P99, priority, levels), difference(URGENT_P99, priority, alone)
        step = self.full_step(stage)
        return [
            Verdict.below(f"urgent TTFT p99 with preemption is {share:.2f} times that in levels", share, 1),
            Verdict.below(
                f"that is {longer:.3f} s more than on an empty server, at most {STEPS} full steps of {step:.3f} s",
                longer,
                STEPS * step,
            ),
            Verdict.always("the crowd finishes", [bool(run.done.all()) for run in priority]),
        ]

    def full_step(self, stage: Stage) -> float:
        """Seconds of a step that uses the whole token budget and reads the keys of a full batch."""
        cost = stage.cost
        cached = stage.max_num_seqs * stage.tokens(CROWD[0].mean + CROWD[1].mean / 2)
        return cost.per_step + cost.per_token * stage.tokens(BUDGET) + cost.per_cached_token * cached

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        ecdf(axes, pooled(results, urgent_ttft), "time to first token of urgent requests, s")
        axes.legend()
