"""Two tenants, one of which floods the server: how much service does each get?"""

from typing import TYPE_CHECKING

import numpy as np

from inflight.scheduler.policies.fair import OUTPUT_PRICE, PROMPT_PRICE
from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Uniform
from load_tests.simulate.plots import lines
from load_tests.simulate.report import FAIRNESS, THROUGHPUT, Column
from load_tests.simulate.result import Result, percentile
from load_tests.traffic import Stream, merge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTHS = Uniform(64, 448), Uniform(64, 448)
LOADS = {"flood": 3.0, "steady": 0.75}
"""Load of each tenant, as a fraction of the machine's capacity. Each asks for more than its fair half."""
CACHE_TOKENS = 24_000


def lead(result: Result) -> tuple[list[float], list[float]]:
    """How much more service the flooding tenant has received, over time, while both tenants had requests waiting."""
    both = [s for s in result.samples if all(s.waiting.get(t, 0) > 0 for t in LOADS) and s.at <= result.arrival[-1]]
    leads = [s.service.get("flood", 0.0) - s.service.get("steady", 0.0) for s in both]
    return [s.at for s in both], [x - leads[0] for x in leads]


def spread(result: Result) -> float:
    """Largest difference in service between the tenants over any interval in which both had requests waiting."""
    leads = lead(result)[1]
    return max(leads) - min(leads) if leads else 0.0


def steady_ttft(result: Result) -> float:
    """Median time to first token of the tenant that does not flood, in seconds."""
    return percentile(result.select(np.array([a.tenant == "steady" for a in result.arrivals])), 50)


STEADY_TTFT = Column("TTFT p50 of the steady tenant, s", steady_ttft)


class FairShares(Experiment):
    """Both tenants ask for more than half of the machine, so both always have requests waiting."""

    name = "fairness"
    title = "How far the flooding tenant gets ahead of the other, while both have requests waiting"
    claim = (
        "With the Virtual Token Counter, whatever one tenant sends, the service of two tenants with requests waiting "
        "differs by at most 2 max(prompt price * longest prompt, output price * tokens in the cache); "
        "first come, first served has no such bound"
    )
    source = "Fairness in Serving Large Language Models (OSDI'24), theorem 4.4"
    requests = 2000

    def bound(self, stage: Stage) -> float:
        """The bound of the theorem, in token prices."""
        longest = stage.tokens(LENGTHS[0].high)
        return 2 * max(PROMPT_PRICE * longest, OUTPUT_PRICE * stage.tokens(CACHE_TOKENS))

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        count = stage.requests(self.requests)
        streams = [
            Stream(Gamma(stage.rate(load, LENGTHS)), *stage.both(LENGTHS), tenants={tenant: 1.0}).make(
                round(count * load / sum(LOADS.values())), (seed, kind)
            )
            for kind, (tenant, load) in enumerate(LOADS.items())
        ]
        # The theorem assumes a scheduler that never preempts.
        settings = {"batch_scheduler_policy": "guaranteed_no_evict", "kv_cache_tokens": stage.tokens(CACHE_TOKENS)}
        arrivals = merge(*streams)
        return [Arm(policy, arrivals, {**settings, "scheduling_policy": policy}) for policy in ("fcfs", "fair")]

    def columns(self, stage: Stage) -> list[Column]:
        return [
            THROUGHPUT,
            FAIRNESS,
            Column("largest lead in service", spread, ".0f"),
            STEADY_TTFT,
        ]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        bound, fair, fcfs = self.bound(stage), results["fair"], results["fcfs"]
        worst, beyond = max(spread(run) for run in fair), estimate(spread, fcfs)
        wait = ratio(STEADY_TTFT, fair, fcfs)
        return [
            Verdict.always(
                f"fair: largest lead with any seed {worst:.0f}, bound {bound:.0f}", [spread(r) <= bound for r in fair]
            ),
            Verdict.above(f"fcfs goes beyond it: {beyond:.0f}", beyond, bound),
            Verdict.below(f"the steady tenant's TTFT p50 under fair is {wait:.2f} times that under fcfs", wait, 1),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        first = {label: lead(runs[0]) for label, runs in results.items()}
        lines(axes, first, "time, s", "lead in service with the first seed, token prices")
        axes.axhline(self.bound(stage), color="black", ls="--", label="bound of theorem 4.4")
        axes.legend()
