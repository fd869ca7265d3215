"""Interactive requests, and background work that fills what they leave of the machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from load_tests.arrivals import Gamma
from load_tests.experiments.experiment import Arm, Experiment, Results, Verdict
from load_tests.experiments.stage import SEED, Stage
from load_tests.lengths import Uniform
from load_tests.simulate.plots import ecdf
from load_tests.simulate.report import PREEMPTIONS, Column
from load_tests.simulate.result import Result, percentile
from load_tests.traffic import Arrival, Stream, merge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTHS = Uniform(128, 512), Uniform(64, 256)
LOADS = {"interactive": 0.15, "background": 0.5}
"""Load of each class, as a fraction of the machine's capacity."""
MOST = 1.1
"""How many times as long as without background work interactive requests may take."""
GAIN = 1.5
"""How many times as many tokens a second the machine should compute with background work."""
CLASSES = {"interactive": {"tenants": ["interactive"]}, "background": {"tenants": ["background"], "leftover": True}}


def is_interactive(result: Result) -> NDArray[np.bool_]:
    """Which requests are interactive, shape [requests]."""
    return np.array([arrival.tenant == "interactive" for arrival in result.arrivals])


def ttft(result: Result) -> float:
    """p99 of the time to first token of interactive requests, in seconds."""
    return percentile(result.select(is_interactive(result)), 99)


def itl(result: Result) -> float:
    """p99 of the times between tokens of interactive requests, in seconds."""
    return result.itl(99, "interactive")


def e2e(result: Result) -> float:
    """p99 of the time from arrival to last token of interactive requests, in seconds."""
    return percentile((result.finish - result.arrival)[is_interactive(result) & result.done], 99)


def throughput(result: Result) -> float:
    """Output tokens per second of the requests that ended while interactive requests arrived."""
    end = result.arrival[is_interactive(result)].max()
    return float(result.output[result.done & (result.finish <= end)].sum() / end)


P99S = {"TTFT": ttft, "ITL": itl, "E2E": e2e}


class Hybrid(Experiment):
    """Interactive requests come one by one. Background work would fill half of the machine."""

    name = "hybrid"
    title = "Interactive requests from arrival to last token"
    claim = (
        "Where background work gets only what interactive requests leave within their targets, it brings half as many "
        "tokens a second again or more, and interactive requests take at most a tenth longer; first come, first served "
        "and priorities do not keep that"
    )
    source = "latency-critical and best-effort requests in one engine: ConServe (2024), and others"

    def arrivals(self, stage: Stage, seed: int = SEED) -> dict[str, Sequence[Arrival]]:
        """The requests of each class. All arrive in about the same time."""
        count = stage.requests(self.requests)
        rates = {name: stage.rate(load, LENGTHS) for name, load in LOADS.items()}
        return {
            name: Stream(
                Gamma(rate), *stage.both(LENGTHS), tenants={name: 1.0}, priority=1 if name == "interactive" else 2
            ).make(round(count * rate / sum(rates.values())), seed + number)
            for number, (name, rate) in enumerate(rates.items())
        }

    def arms(self, stage: Stage, seed: int = SEED) -> list[Arm]:
        streams = self.arrivals(stage, seed)
        both = merge(*streams.values())
        budget = {"max_num_batched_tokens": stage.tokens(512)}
        levels = {"priority_levels": 2, "default_priority_level": 2}
        return [
            Arm("interactive alone", streams["interactive"], budget),
            Arm("fcfs", both, budget),
            Arm("priority", both, budget | levels | {"scheduling_policy": "priority", "priority_ageing_seconds": 1e6}),
            Arm("classes", both, budget | {"scheduling_policy": "classes", "request_classes": CLASSES}),
        ]

    def columns(self, stage: Stage) -> list[Column]:
        return [
            Column("output tok/s", throughput, ".0f"),
            Column("interactive TTFT p99, s", ttft, ".3f"),
            Column("interactive ITL p99, ms", lambda r: 1e3 * itl(r)),
            Column("interactive E2E p99, s", e2e, ".2f"),
            PREEMPTIONS,
        ]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        alone, classes = results["interactive alone"], results["classes"]
        gain = throughput(classes) / throughput(alone)
        ratios = {name: p99(classes) / p99(alone) for name, p99 in P99S.items()}
        others = {
            label: max(p99(results[label]) / p99(alone) for p99 in P99S.values()) for label in ("fcfs", "priority")
        }
        return [
            Verdict(f"classes: {gain:.2f} times the tokens/s of interactive alone (at least {GAIN})", gain >= GAIN),
            *(
                Verdict(f"classes: interactive {name} p99 {ratio:.2f} times that alone (at most {MOST})", ratio <= MOST)
                for name, ratio in ratios.items()
            ),
            *(
                Verdict(f"{label}: the worst of these is {ratio:.2f} times that alone", ratio > MOST)
                for label, ratio in others.items()
            ),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        times = {label: (r.finish - r.arrival)[is_interactive(r) & r.done] for label, r in results.items()}
        ecdf(axes, times, "arrival to last token of interactive requests, s")
        axes.legend()
