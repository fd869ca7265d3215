"""Padded batches, batches without padding that run to completion, and batches that requests join in flight."""

from typing import TYPE_CHECKING

from load_tests.arrivals import AllAtOnce
from load_tests.experiments.estimate import ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.plots import bars
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Exponential, Lengths, Uniform, fixed
from load_tests.simulate.report import E2E_MEAN, THROUGHPUT, TTFT_MEAN, Column
from load_tests.traffic import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTHS: dict[str, tuple[Lengths, Lengths]] = {
    "equal": (fixed(512), fixed(128)),
    "variable": (Uniform(64, 960), Exponential(128, 768)),
}
KEPT = 0.95
"""A batch as good as ours has at least this share of its throughput."""


class PaddedBatches(Experiment):
    """`pad_sequence` is a padded batch: on the engine `generate` of transformers. `pack_sequence` is a batch that
    computes no padding but takes no new requests: our static batches. In flight are our continuous batches."""

    name = "padded_batches"
    title = "Throughput of padded, packed and in-flight batches"
    claim = "A batch is made by pad_sequence, or by pack_sequence, which saves the padding"
    source = "articles on batching with PyTorch"
    requests = 512

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        ways = {"padded": stage.padded, "packed": stage.packed, "in flight": stage.run}
        found = []
        for kind, lengths in LENGTHS.items():
            arrivals = Stream(AllAtOnce(), *stage.both(lengths)).make(stage.requests(self.requests), seed)
            found += [Arm(f"{way}, {kind}", arrivals, serve=serve) for way, serve in ways.items()]
        return found

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_MEAN, E2E_MEAN]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        saved = ratio(THROUGHPUT, results["packed, variable"], results["padded, variable"])
        found = [Verdict.above(f"variable lengths: packed has {saved:.2f} times the throughput of padded", saved, 1)]
        for kind in LENGTHS:
            for way in ("padded", "packed"):
                kept = ratio(THROUGHPUT, results[f"{way}, {kind}"], results[f"in flight, {kind}"])
                text = f"{kind} lengths: {way} has {kept:.2f} times the throughput of in flight (at least {KEPT})"
                found.append(Verdict.above(text, kept, KEPT))
        return found

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        bars(axes, results, THROUGHPUT)
