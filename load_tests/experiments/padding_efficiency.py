"""The share of real tokens in padded batches, and the throughput that padded batches lose."""

from itertools import product
from typing import TYPE_CHECKING

from load_tests.arrivals import AllAtOnce
from load_tests.experiments.estimate import Ratio, estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Outcome, Verdict
from load_tests.lengths import AZURE_CHAT, AZURE_CODE, Exponential, Lengths, Uniform, fixed
from load_tests.simulate.report import E2E_MEAN, EFFICIENCY, PADDING, THROUGHPUT, Column
from load_tests.traffic import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTHS: dict[str, tuple[Lengths, Lengths]] = {
    "equal": (fixed(512), fixed(128)),
    "similar": (Uniform(384, 640), Uniform(96, 160)),
    "uniform": (Uniform(64, 960), Uniform(16, 240)),
    "exponential": (Uniform(64, 960), Exponential(128, 1536)),
    "Azure chat": AZURE_CHAT,
    "Azure code": AZURE_CODE,
}
PADDED = ("static", "bucketed")
CONTINUOUS = "continuous"
GOOD, BAD = 0.7, 0.3
"""Bounds of the claim."""
KEPT, LOST = 0.8, 0.5
"""Shares of the throughput of continuous batching: a good batch has more than the first, a bad one less than the
second."""


class PaddingEfficiency(Experiment):
    """All requests at once, so that bucketed batches can choose among many."""

    name = "padding_efficiency"
    title = "Throughput kept, against the share of real tokens"
    claim = (
        "The share of real tokens among computed ones tells good batches from bad: above 0.7 little is lost, below 0.3 "
        "the machine computes padding"
    )
    source = "a rule in articles on padding and bucketing"
    requests = 512

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        found = []
        for name, lengths in LENGTHS.items():
            arrivals = Stream(AllAtOnce(), *stage.both(lengths)).make(stage.requests(self.requests), seed)
            found += [
                Arm(f"{name}, {strategy}", arrivals, {"batching_strategy": strategy})
                for strategy in (*PADDED, CONTINUOUS)
            ]
        return found

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, E2E_MEAN, PADDING, EFFICIENCY]

    def kept(self, results: Results) -> dict[str, tuple[float, Ratio]]:
        """Efficiency of each padded arm, and its throughput relative to continuous batching of the same requests."""
        return {
            f"{name}, {strategy}": (
                estimate(EFFICIENCY.value, results[f"{name}, {strategy}"]).mean,
                ratio(THROUGHPUT, results[f"{name}, {strategy}"], results[f"{name}, {CONTINUOUS}"]),
            )
            for name, strategy in product(LENGTHS, PADDED)
        }

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        kept = self.kept(results)
        good = {label: share for label, (efficiency, share) in kept.items() if efficiency > GOOD}
        bad = {label: share for label, (efficiency, share) in kept.items() if efficiency < BAD}
        found = []
        if good:
            worst = min(good, key=lambda label: good[label].mean)
            text = f"above {GOOD}: {worst} has {good[worst]:.2f} times the throughput of continuous (at least {KEPT})"
            found.append(Verdict.above(text, good[worst], KEPT))
        if bad:
            best = max(bad, key=lambda label: bad[label].mean)
            text = f"below {BAD}: {best} has {bad[best]:.2f} times the throughput of continuous (at most {LOST})"
            found.append(Verdict.below(text, bad[best], LOST))
        return found or [Verdict("no batch is above or below the bounds", Outcome.UNDECIDED)]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        kept = self.kept(results)
        for strategy, marker in zip(PADDED, "os", strict=True):
            points = {name: kept[f"{name}, {strategy}"] for name in LENGTHS}
            shares = [share for _, share in points.values()]
            errors = [[s.mean - s.low for s in shares], [s.high - s.mean for s in shares]]
            x = [efficiency for efficiency, _ in points.values()]
            axes.errorbar(x, [s.mean for s in shares], errors, fmt=marker, capsize=3, label=strategy)
            for name, (efficiency, share) in points.items():
                axes.annotate(name, (efficiency, share.mean), textcoords="offset points", xytext=(6, 3), fontsize=8)
        for bound in (BAD, GOOD):
            axes.axvline(bound, color="black", ls="--", lw=0.8)
        axes.set(xlabel=EFFICIENCY.name, ylabel="throughput relative to continuous batching", xlim=(0, 1.1))
        axes.grid(alpha=0.3)
        axes.legend()
