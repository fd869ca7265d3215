"""Throughput and time between tokens by the number of requests that run at once."""

from typing import TYPE_CHECKING

from load_tests.arrivals import AllAtOnce
from load_tests.experiments.estimate import estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Lengths, Uniform
from load_tests.simulate.plots import label_plainly
from load_tests.simulate.report import ITL_MEAN, ITL_P99, THROUGHPUT, Column
from load_tests.simulate.result import Result
from load_tests.traffic import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CLAIMED = 16, 32
KINDS: dict[str, tuple[Lengths, Lengths]] = {
    "short prompts": (Uniform(64, 192), Uniform(64, 192)),
    "long prompts": (Uniform(512, 1536), Uniform(64, 192)),
}
TURNS = 4
"""So many requests follow each other in a slot, where the stage allows as many requests."""

POWER = Column("tok/s per ms of ITL", lambda r: r.throughput / ITL_MEAN.value(r))


def full_batch(stage: Stage, seed: int, lengths: tuple[Lengths, Lengths], size: int, label: str) -> Arm:
    """Enough requests, all there from the start, to keep `size` running."""
    count = max(size, stage.requests(TURNS * max(SIZES[4], size)))
    arrivals = Stream(AllAtOnce(), *stage.both(lengths)).make(count, seed)
    return Arm(label, arrivals, {"max_num_seqs": size, "kv_cache_tokens": stage.tokens(400_000)})


class BatchSize(Experiment):
    """Every slot of the batch is taken, as all requests are there from the start."""

    name = "batch_size"
    title = "Throughput against time between tokens, for 1 to 256 requests at once (shaded: 16 to 32)"
    claim = "The best batch is 16 to 32 requests: larger ones gain nothing, and cost latency"
    source = "a rule in many articles on batching; the best compromise by Kleinrock's power (1979)"

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        return [
            full_batch(stage, seed, lengths, size, f"{kind}, {size}")
            for kind, lengths in KINDS.items()
            for size in SIZES
        ]

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, ITL_MEAN, ITL_P99, POWER]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        found = []
        for kind in KINDS:
            gain = ratio(THROUGHPUT, results[f"{kind}, {SIZES[-1]}"], results[f"{kind}, {CLAIMED[1]}"])
            best = estimate(best_size, *(results[f"{kind}, {size}"] for size in SIZES))
            found += [
                Verdict.below(f"{kind}: 256 have {gain:.2f} times the throughput of 32 (at most 1.1)", gain, 1.1),
                Verdict.within(f"{kind}: throughput over time between tokens is best at {best:.0f}", best, *CLAIMED),
            ]
        return found

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        for kind in KINDS:
            arms = {size: results[f"{kind}, {size}"] for size in SIZES}
            x = {size: estimate(ITL_MEAN.value, runs).mean for size, runs in arms.items()}
            y = {size: estimate(THROUGHPUT.value, runs).mean for size, runs in arms.items()}
            (line,) = axes.plot(list(x.values()), list(y.values()), marker="o", label=kind)
            axes.axvspan(x[CLAIMED[0]], x[CLAIMED[1]], alpha=0.15, color=line.get_color())
            for number, size in enumerate(SIZES):
                # Below and above the curve in turn, as the last points of long prompts lie side by side.
                at = (4, 6 if number % 2 else -10)
                axes.annotate(str(size), (x[size], y[size]), textcoords="offset points", xytext=at, fontsize=8)
        axes.set(xscale="log", yscale="log", xlabel=ITL_MEAN.name, ylabel=THROUGHPUT.name)
        label_plainly(axes.xaxis, axes.yaxis)
        axes.grid(alpha=0.3)
        axes.legend()


def best_size(*results: Result) -> float:
    """The size of the batch with the most power, of one result for each size."""
    return max(zip(SIZES, results, strict=True), key=lambda each: POWER.value(each[1]))[0]
