"""Static, dynamic, bucketed and continuous batching, with equal and with variable output lengths."""

from typing import TYPE_CHECKING

from load_tests.arrivals import AllAtOnce
from load_tests.experiments.experiment import Arm, Experiment, Results, Verdict
from load_tests.experiments.stage import SEED, Stage
from load_tests.lengths import Exponential, Lengths, Uniform, fixed
from load_tests.simulate.plots import bars
from load_tests.simulate.report import E2E_MEAN, PADDING, THROUGHPUT, TTFT_P50, Column, cost
from load_tests.traffic import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STRATEGIES = ("static", "dynamic", "bucketed", "continuous")
PROMPTS = Uniform(64, 960)
OUTPUTS: dict[str, Lengths] = {"equal": fixed(128), "variable": Exponential(128, 1536)}
REPORTED = 8.0


class BatchingStrategies(Experiment):
    """Anyscale's workload: all requests at once, prompts of 512 tokens on average, outputs exponential."""

    name = "batching"
    title = "Throughput by batching strategy, with outputs of equal and of exponential length"
    claim = (
        "Iteration-level scheduling multiplies the throughput of batches that run to completion, the more the more "
        "output lengths vary; Anyscale saw 8 times that of naive static batching from it alone"
    )
    source = "Orca (OSDI'22); Anyscale, 'How continuous batching enables 23x throughput' (2023)"
    requests = 2000

    def arms(self, stage: Stage) -> list[Arm]:
        found = []
        for kind, outputs in OUTPUTS.items():
            stream = Stream(AllAtOnce(), stage.lengths(PROMPTS), stage.lengths(outputs))
            arrivals = stream.make(stage.requests(self.requests), SEED)
            # Dynamic batches, which count tokens, are as large as the others on average.
            budget = stage.tokens(PROMPTS.mean) * stage.max_num_seqs
            for strategy in STRATEGIES:
                settings = {"batching_strategy": strategy, "max_num_batched_tokens": budget}
                found.append(Arm(f"{strategy}, {kind}", arrivals, settings))
        return found

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_P50, E2E_MEAN, PADDING, cost(None)]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        gains = {
            kind: results[f"continuous, {kind}"].throughput / results[f"static, {kind}"].throughput for kind in OUTPUTS
        }
        best = max(results[f"{s}, variable"].throughput for s in STRATEGIES[:-1])
        continuous = results["continuous, variable"].throughput
        return [
            Verdict(
                f"variable outputs: continuous {continuous:.0f} tok/s, best of the others {best:.0f}", continuous > best
            ),
            Verdict(
                f"gain over static {gains['variable']:.1f}x with variable outputs, {gains['equal']:.1f}x with equal",
                gains["variable"] > gains["equal"],
            ),
            Verdict(f"gain of {gains['variable']:.1f}x reaches {REPORTED:.0f}x", gains["variable"] >= REPORTED),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        bars(axes, results, THROUGHPUT)
