"""What 16 and 64 requests at once gain over one after the other."""

from typing import TYPE_CHECKING

from load_tests.experiments.batch_size import KINDS, full_batch
from load_tests.experiments.estimate import ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.simulate.plots import label_plainly
from load_tests.simulate.report import E2E_MEAN, ITL_MEAN, THROUGHPUT, Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLAIMED = {1: 1, 16: 10, 64: 30}
"""Throughput by number of requests at once."""
SLACK = 1.25
"""A factor within this one of the claimed one, either way, is as claimed."""


class Concurrency(Experiment):
    """The workloads of the experiment on the size of the batch."""

    name = "concurrency"
    title = "Throughput by requests at once, relative to one at a time"
    claim = "1, 16 and 64 requests at once have 1, 10 and 30 times the throughput"
    source = "a table in articles on continuous batching"

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        return [
            full_batch(stage, seed, lengths, size, f"{kind}, {size}")
            for kind, lengths in KINDS.items()
            for size in CLAIMED
        ]

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, ITL_MEAN, E2E_MEAN]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        found = []
        for kind in KINDS:
            for size, claimed in list(CLAIMED.items())[1:]:
                gain = ratio(THROUGHPUT, results[f"{kind}, {size}"], results[f"{kind}, 1"])
                text = f"{kind}: {size} at once have {gain:.1f} times the throughput (claimed: {claimed})"
                found.append(Verdict.within(text, gain, claimed / SLACK, claimed * SLACK))
        return found

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        sizes = list(CLAIMED)
        axes.plot(sizes, list(CLAIMED.values()), "k--", marker="x", label="claimed")
        for kind in KINDS:
            gains = [ratio(THROUGHPUT, results[f"{kind}, {size}"], results[f"{kind}, 1"]) for size in sizes]
            errors = [[g.mean - g.low for g in gains], [g.high - g.mean for g in gains]]
            axes.errorbar(sizes, [g.mean for g in gains], yerr=errors, marker="o", capsize=3, label=kind)
        axes.set(xscale="log", yscale="log", xlabel="requests at once", ylabel="throughput, relative to one at a time")
        label_plainly(axes.yaxis)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.grid(alpha=0.3)
        axes.legend()
