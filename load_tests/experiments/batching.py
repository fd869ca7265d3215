"""Static, dynamic, bucketed and continuous batching, with equal and with variable output lengths."""

from typing import TYPE_CHECKING

from load_tests.arrivals import AllAtOnce
from load_tests.experiments.estimate import estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.plots import bars
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Exponential, Lengths, Uniform, fixed
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
    requests = 500

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        found = []
        for kind, outputs in OUTPUTS.items():
            stream = Stream(AllAtOnce(), stage.lengths(PROMPTS), stage.lengths(outputs))
            arrivals = stream.make(stage.requests(self.requests), seed)
            # Dynamic batches, which count tokens, are as large as the others on average.
            budget = stage.tokens(PROMPTS.mean) * stage.max_num_seqs
            for strategy in STRATEGIES:
                settings = {"batching_strategy": strategy, "max_num_batched_tokens": budget}
                found.append(Arm(f"{strategy}, {kind}", arrivals, settings))
        return found

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_P50, E2E_MEAN, PADDING, cost(None)]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        *others, continuous = (results[f"{strategy}, variable"] for strategy in STRATEGIES)
        equal = [results[f"{strategy}, equal"] for strategy in ("continuous", "static")]
        over_best = estimate(lambda own, *rest: own.throughput / max(r.throughput for r in rest), continuous, *others)
        variable_gain, equal_gain = ratio(THROUGHPUT, continuous, others[0]), ratio(THROUGHPUT, *equal)
        more = estimate(
            lambda a, b, c, d: a.throughput / b.throughput - c.throughput / d.throughput, continuous, others[0], *equal
        )
        return [
            Verdict.above(f"variable outputs: {over_best:.2f} times the throughput of the best other", over_best, 1),
            Verdict.above(
                f"gain over static: {variable_gain:.2f} with variable outputs, {equal_gain:.2f} with equal",
                more,
                0,
            ),
            Verdict.above(f"the gain of {variable_gain:.2f} reaches {REPORTED:.0f}", variable_gain, REPORTED),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        bars(axes, results, THROUGHPUT)
