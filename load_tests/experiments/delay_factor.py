"""`scheduler_delay_factor`: delay prefill until several requests have arrived."""

from typing import TYPE_CHECKING

from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import difference, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Uniform
from load_tests.simulate.plots import gap_ecdf
from load_tests.simulate.report import E2E_MEAN, ITL_MEAN, ITL_P50, ITL_P99, THROUGHPUT, TTFT_P50, TTFT_P99, Column
from load_tests.traffic import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTHS = Uniform(32, 128), Uniform(64, 192)
FACTORS = (0.0, 0.5, 1.0, 2.0)
WHOLE = 8192
LOAD = 0.7


class DelayFactor(Experiment):
    """Short prompts. Without the delay each prompt would have a step to itself, so this workload can gain the most."""

    name = "delay_factor"
    title = "Inter-token latency by delay factor"
    claim = (
        "Without chunked prefill, waiting until arrivals have gathered lowers the time between tokens, over twofold "
        "under stress, at some cost in time to first token"
    )
    source = "vLLM, pull request 3279 (2024)"

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        stream = Stream(Gamma(stage.rate(LOAD, LENGTHS)), *stage.both(LENGTHS))
        arrivals = stream.make(stage.requests(self.requests), seed)
        whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": stage.tokens(WHOLE)}
        chunked = {"max_num_batched_tokens": stage.tokens(512)}
        return [
            *(Arm(f"whole, {factor}", arrivals, {**whole, "scheduler_delay_factor": factor}) for factor in FACTORS),
            *(Arm(f"chunked, {f}", arrivals, {**chunked, "scheduler_delay_factor": f}) for f in (0.0, 1.0)),
        ]

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_P50, TTFT_P99, ITL_MEAN, ITL_P50, ITL_P99, E2E_MEAN]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        at_once, delayed = results["whole, 0.0"], results["whole, 1.0"]
        fall, longer = ratio(ITL_MEAN, at_once, delayed), difference(TTFT_P50, delayed, at_once)
        return [
            Verdict.above(f"a delay factor of 1 lowers the mean ITL by a factor of {fall:.2f}", fall, 1),
            Verdict.above(f"that factor of {fall:.2f} is 2 or more", fall, 2),
            Verdict.above(f"the price is paid: TTFT p50 is longer by {longer:.3f} s", longer, 0),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        gap_ecdf(axes, results)
        axes.legend()
