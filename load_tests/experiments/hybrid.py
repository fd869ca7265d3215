"""Interactive requests, and background work that fills what they leave of the machine."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import Ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.plots import pooled
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
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
CLASSES = {
    "interactive": {"tenants": ["interactive"], "target_ttft_ms": 500},
    "background": {"tenants": ["background"], "leftover": True},
}
MOST = 1.1
"""How many times as long as without background work interactive requests may take."""
GAIN = 1.5
"""How many times as many tokens a second the machine should compute with background work."""
ALONE = "interactive alone"


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
    """Output tokens per second of the requests that ended no later than the last interactive one."""
    end = result.finish[is_interactive(result) & result.done].max()
    return float(result.output[result.done & (result.finish <= end)].sum() / end)


Measure = Callable[[Result], float]
P99S: dict[str, Measure] = {"TTFT": ttft, "ITL": itl, "E2E": e2e}


class Hybrid(Experiment):
    """Interactive requests come one by one. Background work would fill half of the machine."""

    name = "hybrid"
    title = "Interactive requests from arrival to last token"
    claim = (
        "Where background work gets only what interactive requests leave within their targets, it brings half as many "
        "tokens a second again or more, and interactive requests take at most a tenth longer; first come, first served "
        "and priorities do not keep that"
    )
    source = "best-effort work beside latency-critical requests: ConServe (2024)"
    requests = 2600

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        alone, background = (self._stream(stage, name, seed) for name in LOADS)
        both = merge(alone, background)
        budget = {"max_num_batched_tokens": stage.tokens(512)}
        # A high value keeps ageing from promoting background work.
        levels = {"priority_levels": 2, "default_priority_level": 2, "priority_ageing_seconds": 1e6}
        return [
            Arm(ALONE, alone, budget),
            Arm("fcfs", both, budget),
            Arm("priority", both, budget | levels | {"scheduling_policy": "priority"}),
            Arm("classes", both, budget | {"scheduling_policy": "classes", "request_classes": CLASSES}),
        ]

    def _stream(self, stage: Stage, name: str, seed: int) -> list[Arrival]:
        """The requests of a class. Those of both arrive within about the same time."""
        count = round(stage.requests(self.requests) * LOADS[name] / sum(LOADS.values()))
        arrivals, priority = Gamma(stage.rate(LOADS[name], LENGTHS)), 1 + list(LOADS).index(name)
        stream = Stream(arrivals, *stage.both(LENGTHS), tenants={name: 1.0}, priority=priority)
        return stream.make(count, (seed, priority))

    def columns(self, stage: Stage) -> list[Column]:
        return [
            Column("output tok/s", throughput, ".0f"),
            Column("interactive TTFT p99, s", ttft, ".3f"),
            Column("interactive ITL p99, ms", lambda r: 1e3 * itl(r)),
            Column("interactive E2E p99, s", e2e, ".2f"),
            PREEMPTIONS,
        ]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        def times_alone(label: str, measure: Measure) -> Ratio:
            pairs = zip(results[label], results[ALONE], strict=True)
            return Ratio.of([measure(run) / measure(alone) for run, alone in pairs])

        def worst(label: str) -> Ratio:
            return max((times_alone(label, p99) for p99 in P99S.values()), key=lambda found: found.mean)

        gain = times_alone("classes", throughput)
        kept = {name: times_alone("classes", p99) for name, p99 in P99S.items()}
        return [
            Verdict.above(f"classes: {gain:.2f} times the tokens/s of interactive alone (at least {GAIN})", gain, GAIN),
            *(
                Verdict.below(f"classes: {name} p99 is {found:.2f} times that alone (at most {MOST})", found, MOST)
                for name, found in kept.items()
            ),
            *(
                Verdict.above(f"{label}: the worst p99 is {worst(label):.2f} times that alone", worst(label), MOST)
                for label in ("fcfs", "priority")
            ),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        times = pooled(results, lambda run: (run.finish - run.arrival)[is_interactive(run) & run.done])
        ecdf(axes, times, "arrival to last token of interactive requests, s")
        axes.legend()
