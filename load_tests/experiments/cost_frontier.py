"""What a token costs and how late it comes, by the objective of `auto_tune`."""

from typing import TYPE_CHECKING

from load_tests.arrivals import Gamma
from load_tests.experiments.chats_and_documents import CHATS, DOCUMENTS, objective
from load_tests.experiments.estimate import difference, estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.simulate.plots import label_plainly, lines
from load_tests.simulate.report import ITL_P99, THROUGHPUT, TTFT_P99, Column, attainment
from load_tests.simulate.result import Result
from load_tests.traffic import Stream, merge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOADS = (0.1, 0.2, 0.4, 0.6, 0.8)
"""As a fraction of the machine's capacity. Two thirds of each are chats, and the rest documents."""
OBJECTIVES = ("throughput", "latency", "cost")
PRICE_PER_HOUR = 4.0
"""About that of an A100 in a cloud, in dollars."""
BUDGET = 2048
ENOUGH = 0.95


def cost(seconds_per_thousand: float) -> float:
    """The price of 1,000 output tokens."""
    return seconds_per_thousand * PRICE_PER_HOUR / 3600


BUSY_COST = Column("cost per 1k tokens", lambda r: cost(r.busy_seconds_per_thousand()), ".5f")


def _saved(cost: Result, throughput: Result) -> float:
    """The share of the cost that the objective `cost` saves."""
    return 1 - BUSY_COST.value(cost) / BUSY_COST.value(throughput)


class CostFrontier(Experiment):
    """Chats and documents, at several loads, under three objectives."""

    name = "cost_frontier"
    title = "Cost of 1,000 output tokens and p99 of gaps, by objective; a point for each load"
    claim = (
        "Under the objective cost, a token takes less machine time than under throughput while the targets are met; "
        "the less load there is, the more it saves. Under latency, gaps are shorter"
    )
    source = "this project; cost and latency of batches: Orca (OSDI'22) and Sarathi-Serve (OSDI'24)"
    requests = 600

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        slo, count = objective(stage), stage.requests(self.requests)
        settings = {
            "target_ttft_ms": 1e3 * slo.ttft,
            "target_itl_ms": 1e3 * slo.itl,
            "max_num_batched_tokens": stage.tokens(BUDGET),
        }
        arms = []
        for load in LOADS:
            rates = [stage.rate(part * load, lengths) for part, lengths in ((2 / 3, CHATS), (1 / 3, DOCUMENTS))]
            streams = [
                Stream(Gamma(rate), *stage.both(lengths)).make(max(1, round(count * rate / sum(rates))), (seed, kind))
                for kind, (rate, lengths) in enumerate(zip(rates, (CHATS, DOCUMENTS), strict=True))
            ]
            arrivals = merge(*streams)
            arms += [Arm(f"{name}, {load}", arrivals, {**settings, "auto_tune": name}) for name in OBJECTIVES]
        return arms

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, BUSY_COST, TTFT_P99, ITL_P99, attainment(objective(stage))]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        met = attainment(objective(stage))
        found = []
        for load in LOADS:
            throughput, latency, cost = (results[f"{name}, {load}"] for name in OBJECTIVES)
            saved = ratio(BUSY_COST, cost, throughput)
            kept = difference(met, cost, throughput)
            gap = ratio(ITL_P99, latency, throughput)
            found += [
                Verdict.below(f"load {load}: cost has {saved:.2f} times the cost of throughput", saved, 1),
                Verdict.above(
                    f"load {load}: share of requests within the objective, cost less throughput: {kept:.1%} (at least "
                    "-5 %)",
                    kept,
                    -0.05,
                ),
                Verdict.below(f"load {load}: latency has {gap:.2f} times the p99 of gaps of throughput", gap, 1),
            ]
        light, heavy = (
            [results[f"{name}, {load}"] for name in ("cost", "throughput")] for load in (LOADS[0], LOADS[-1])
        )
        more = estimate(lambda a, b, c, d: _saved(c, d) - _saved(a, b), *heavy, *light)
        return [*found, Verdict.above(f"the share saved is larger at the lightest load by {more:.2f}", more, 0)]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        curves = {
            name: (
                [estimate(ITL_P99.value, results[f"{name}, {load}"]).mean for load in LOADS],
                [estimate(BUSY_COST.value, results[f"{name}, {load}"]).mean for load in LOADS],
            )
            for name in OBJECTIVES
        }
        lines(axes, curves, "p99 of inter-token latency, ms", "cost of 1,000 output tokens")
        for gaps, prices in curves.values():
            axes.scatter(gaps, prices, s=12)
            for load, gap, price in zip(LOADS, gaps, prices, strict=True):
                axes.annotate(f"{load}", (gap, price), fontsize="x-small", xytext=(3, 3), textcoords="offset points")
        axes.axvline(1e3 * objective(stage).itl, color="black", ls="--", label="target_itl_ms")
        axes.set(xscale="log", yscale="log")
        label_plainly(axes.xaxis, axes.yaxis)
        axes.legend()
