"""Shortest job first compared with first come, first served, near saturation."""

from typing import TYPE_CHECKING

from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.plots import pooled
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import AZURE_CHAT, AZURE_CODE
from load_tests.simulate.plots import ecdf
from load_tests.simulate.report import E2E_MEAN, E2E_P99, THROUGHPUT, TTFT_MEAN, TTFT_P50, TTFT_P99, Column
from load_tests.traffic import Stream, merge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOAD = 0.95
AGEING = (0, 20, 200)
"""Values of `sjf_ageing` in tokens per second. The default is 20."""

TTFT_MAX = Column("TTFT max, s", lambda r: float(r.ttft.max()), ".2f")


class ShortestFirst(Experiment):
    """The two Azure services are two tenants, close to the machine's capacity. Their output lengths differ tenfold."""

    name = "shortest_first"
    title = "Time to first token near saturation, by order of admission"
    claim = (
        "Near saturation, shortest job first by predicted lengths lowers the mean latency, and with latest starts the "
        "slowest hundredth ends no later; some wait longer for their first token, and ageing shortens that"
    )
    source = "the classic result for queues; for language models vLLM-LTR (NeurIPS'24)"
    requests = 1500

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        count = stage.requests(self.requests)
        streams = [
            Stream(
                Gamma(stage.rate(LOAD / 2, lengths)),
                stage.lengths(lengths[0]),
                stage.lengths(lengths[1]),
                max_tokens=stage.tokens(2000),
                tenants={tenant: 1.0},
            ).make(count, (seed, kind))
            for kind, (tenant, lengths) in enumerate((("chat", AZURE_CHAT), ("code", AZURE_CODE)))
        ]
        arrivals = merge(*streams)[:count]
        sjf = [Arm(f"sjf, ageing {a}", arrivals, {"scheduling_policy": "sjf", "sjf_ageing": a}) for a in AGEING]
        return [Arm("fcfs", arrivals), *sjf]

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_MEAN, TTFT_P50, TTFT_P99, TTFT_MAX, E2E_MEAN, E2E_P99]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        def less(column: Column, left: str, right: str) -> Verdict:
            share = ratio(column, results[left], results[right])
            return Verdict.below(f"{column.name}: {left} has {share:.2f} times that of {right}", share, 1)

        return [
            less(E2E_MEAN, "sjf, ageing 20", "fcfs"),
            less(E2E_P99, "sjf, ageing 20", "fcfs"),
            less(TTFT_P99, "fcfs", "sjf, ageing 20"),
            less(TTFT_MAX, "sjf, ageing 200", "sjf, ageing 0"),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        ecdf(axes, pooled(results, lambda r: r.ttft), "time to first token, s")
        axes.legend()
