"""Which requests to admit when the KV cache is scarce and output lengths are unknown."""

from typing import TYPE_CHECKING

from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import difference, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.plots import bars
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Exponential, Uniform
from load_tests.simulate.report import ITL_P99, PREEMPTIONS, THROUGHPUT, TTFT_P50, TTFT_P99, Column, attainment, goodput
from load_tests.traffic import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTHS = Uniform(64, 448), Exponential(256, 2048)
MAX_TOKENS = 2048
CACHE_TOKENS = 12_000
"""A third of the cache that 64 sequences of average length fill when they end."""
LOAD = 0.7
"""Fraction of the capacity of a machine whose cache is always full of requests at their final length."""
MODES = ("guaranteed_no_evict", "max_utilization", "future_peak")


class AdmissionModes(Experiment):
    """Every request asks for up to 2,048 tokens and generates 256 on average."""

    name = "admission"
    title = "Goodput with a scarce KV cache, by admission policy"
    claim = (
        "Reserving for the worst case wastes the cache, admitting while blocks last preempts a lot; admitting by the "
        "predicted peak has more goodput than either"
    )
    source = "the Past-Future scheduler (ASPLOS'25); TensorRT-LLM's GUARANTEED_NO_EVICT and MAX_UTILIZATION"
    requests = 1200

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        num_seqs = CACHE_TOKENS / sum(lengths.mean for lengths in LENGTHS)
        stream = Stream(
            Gamma(stage.rate(LOAD, LENGTHS, num_seqs)), *stage.both(LENGTHS), max_tokens=stage.tokens(MAX_TOKENS)
        )
        arrivals = stream.make(stage.requests(self.requests), seed)
        cache = {"kv_cache_tokens": stage.tokens(CACHE_TOKENS)}
        return [Arm(mode, arrivals, {**cache, "batch_scheduler_policy": mode}) for mode in MODES]

    def columns(self, stage: Stage) -> list[Column]:
        latencies = [TTFT_P50, TTFT_P99, ITL_P99]
        return [THROUGHPUT, *latencies, PREEMPTIONS, goodput(stage.slo), attainment(stage.slo)]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        reserved, greedy, peak = (results[mode] for mode in MODES)
        gain, fewer = ratio(THROUGHPUT, greedy, reserved), difference(PREEMPTIONS, greedy, peak)
        good = [difference(goodput(stage.slo), peak, other) for other in (reserved, greedy)]
        return [
            Verdict.above(f"max_utilization has {gain:.2f} times the throughput of guaranteed_no_evict", gain, 1),
            Verdict.above(f"preemptions: max_utilization less future_peak is {fewer:.0f}", fewer, 0),
            Verdict.above(f"goodput: future_peak less guaranteed_no_evict is {good[0]:.2f} req/s", good[0], 0),
            Verdict.above(f"goodput: future_peak less max_utilization is {good[1]:.2f} req/s", good[1], 0),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        bars(axes, results, goodput(stage.slo))
