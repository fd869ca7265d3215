"""Shortest job first by lengths that are predicted from prompts, where the prompt tells the length and where it does
not."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.plots import pooled
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import LogNormal, Uniform
from load_tests.simulate.plots import ecdf
from load_tests.simulate.report import E2E_MEAN, E2E_P99, THROUGHPUT, TTFT_MEAN, TTFT_P99, Column
from load_tests.traffic import Arrival, Stream, merge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOAD = 1.2
"""Of the capacity with a full batch and no prompts that come together; about where the queue stops being empty."""
PROMPTS = Uniform(50, 400)
KINDS = ((0.6, LogNormal(9, 0.5, 1, 2000)), (0.3, LogNormal(90, 0.5, 1, 2000)), (0.1, LogNormal(900, 0.5, 1, 2000)))
"""The share of each kind of request, and the lengths of its outputs."""
INSTRUCTION = 16
"""Tokens at the beginning of a prompt, which all requests of a kind share."""
ARMS = {
    "fcfs": {},
    "sjf, tenant": {"scheduling_policy": "sjf"},
    "sjf, template": {"scheduling_policy": "sjf", "length_predictor": "template"},
    "sjf, ranker": {"scheduling_policy": "sjf", "length_predictor": "ranker"},
}
NOTHING = "; nothing to learn"


class OutputLengths(Experiment):
    """Three kinds of requests of one tenant, such as labels, answers and essays."""

    name = "output_lengths"
    title = "Time from arrival to the last token, by order of admission"
    claim = (
        "Near saturation, shortest job first by output lengths that are predicted from prompts lowers the mean latency "
        "further than by those of the tenant's past outputs, without a longer tail; where prompts tell nothing of the "
        "lengths, it costs nothing"
    )
    source = "Efficient LLM Scheduling by Learning to Rank (NeurIPS'24), with a ranker that learns while it serves"
    requests = 2000

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        arrivals = _arrivals(stage, stage.requests(self.requests), seed)
        mixed = np.random.default_rng((seed, 1)).permutation([arrival.prefix for arrival in arrivals]).tolist()
        senseless = [replace(arrival, prefix=prefix) for arrival, prefix in zip(arrivals, mixed, strict=True)]
        return [
            *(Arm(label, arrivals, settings) for label, settings in ARMS.items()),
            *(Arm(label + NOTHING, senseless, ARMS[label]) for label in ("fcfs", "sjf, ranker")),
        ]

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_MEAN, TTFT_P99, E2E_MEAN, E2E_P99]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        def compare(column: Column, left: str, right: str, bound: float) -> Verdict:
            share = ratio(column, results[left], results[right])
            text = f"{column.name}: {left} has {share:.2f} times that of {right} (at most {bound})"
            return Verdict.below(text, share, bound)

        return [
            compare(E2E_MEAN, "sjf, ranker", "fcfs", 1.0),
            compare(E2E_MEAN, "sjf, ranker", "sjf, tenant", 1.0),
            compare(E2E_P99, "sjf, ranker", "fcfs", 1.05),
            compare(E2E_MEAN, "sjf, ranker" + NOTHING, "fcfs" + NOTHING, 1.02),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        shown = {label: each for label, each in results.items() if NOTHING not in label}
        ecdf(axes, pooled(shown, lambda r: r.e2e), "time from arrival to the last token, s")
        axes.legend()


def _arrivals(stage: Stage, count: int, seed: int) -> list[Arrival]:
    prompts = stage.lengths(PROMPTS)
    seconds = sum(share / stage.rate(LOAD, (PROMPTS, outputs)) for share, outputs in KINDS)
    streams = []
    for kind, (share, outputs) in enumerate(KINDS):
        stream = Stream(
            Gamma(share / seconds),
            prompts,
            stage.lengths(outputs),
            max_tokens=stage.tokens(2000),
            prefix_tokens=INSTRUCTION,
        )
        streams.append([replace(arrival, prefix=1 + kind) for arrival in stream.make(count, (seed, kind))])
    return merge(*streams)[:count]
