"""How long a dynamic batch should wait for more requests."""

from typing import TYPE_CHECKING

from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import difference, estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Uniform
from load_tests.simulate.report import E2E_MEAN, E2E_P99, THROUGHPUT, TTFT_MEAN, TTFT_P99, Column
from load_tests.traffic import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAITS = (0, 25, 50, 100, 200, 500)
"""Milliseconds."""
CLAIMED = (50, 100)
LOADS = (0.02, 0.4)
"""Fractions of the capacity of continuous batching. At the first one most requests find the machine idle; dynamic
batches can't serve much more than the second one."""
LENGTHS = Uniform(64, 448), Uniform(32, 224)


class BatchWait(Experiment):
    """Chat requests, at a light load and near the capacity of dynamic batches."""

    name = "batch_wait"
    title = "Mean time to the last token, by the wait of a batch (dashed: continuous batching; shaded: 50 to 100 ms)"
    claim = "Collecting requests for 50 to 100 ms is how to balance the latency and the throughput of batches"
    source = "a rule in articles on dynamic batching"
    requests = 300

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        found = []
        budget = stage.tokens(LENGTHS[0].mean) * stage.max_num_seqs
        for load in LOADS:
            stream = Stream(Gamma(stage.rate(load, LENGTHS)), *stage.both(LENGTHS))
            arrivals = stream.make(stage.requests(self.requests), seed)
            dynamic = {"batching_strategy": "dynamic", "max_num_batched_tokens": budget}
            found += [Arm(f"load {load}, {wait} ms", arrivals, {**dynamic, "batch_wait_ms": wait}) for wait in WAITS]
            found.append(Arm(f"load {load}, continuous", arrivals))
        return found

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_MEAN, TTFT_P99, E2E_MEAN, E2E_P99]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        found = []
        for load in LOADS:
            means = {wait: estimate(E2E_MEAN.value, results[f"load {load}, {wait} ms"]).mean for wait in WAITS}
            claimed, best = (results[f"load {load}, {min(w, key=means.__getitem__)} ms"] for w in (CLAIMED, WAITS))
            longer = difference(E2E_MEAN, claimed, results[f"load {load}, 0 ms"])
            gain = ratio(THROUGHPUT, claimed, results[f"load {load}, 0 ms"])
            slower = ratio(E2E_MEAN, best, results[f"load {load}, continuous"])
            found += [
                Verdict.below(f"load {load}: E2E mean less that without waiting is {longer:.3f} s", longer, 0),
                Verdict.above(f"load {load}: throughput is {gain:.3f} times that without waiting", gain, 1),
                Verdict.below(f"load {load}: E2E mean of the best wait is {slower:.2f} times continuous", slower, 1),
            ]
        return found

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        for load in LOADS:
            found = [estimate(E2E_MEAN.value, results[f"load {load}, {wait} ms"]) for wait in WAITS]
            errors = [each.half_width or 0.0 for each in found]
            line = axes.errorbar(WAITS, [e.mean for e in found], errors, marker="o", capsize=3, label=f"load {load}")
            continuous = estimate(E2E_MEAN.value, results[f"load {load}, continuous"]).mean
            axes.axhline(continuous, color=line.lines[0].get_color(), ls="--")
        axes.axvspan(*CLAIMED, alpha=0.15, color="gray")
        axes.set(xlabel="batch_wait_ms", ylabel=E2E_MEAN.name, ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
