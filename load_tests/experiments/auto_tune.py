"""A load that changes twice, under fixed settings and under settings that tune themselves."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from load_tests.arrivals import Gamma
from load_tests.experiments.chats_and_documents import CHATS, DOCUMENTS, objective
from load_tests.experiments.estimate import Estimate, estimate
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Lengths
from load_tests.simulate.report import ITL_P99, TTFT_P99, Column
from load_tests.simulate.result import Result
from load_tests.traffic import Arrival, Stream, merge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOADS = {"chats": (0.8, 0.0), "documents": (0.0, 0.65), "both": (0.35, 0.45)}
"""Load of chats and of documents in each phase, as a fraction of the machine's capacity."""
SEQS = (0.5, 1)
"""Of the stage's `max_num_seqs`."""
BUDGETS = (256, 512, 2048)
AUTO = "auto_tune"
ENOUGH = 0.95


class AutoTune(Experiment):
    """Chats, then long documents, then both."""

    name = "auto_tune"
    title = "Settings that auto_tune chose while the load changed (relative to their bounds)"
    claim = (
        "Settings that follow the step-time model and measured latencies have at least 0.95 of the goodput that the "
        "best fixed setting has in each phase of a load, though no fixed setting is the best in all phases"
    )
    source = "this project; SLO-aware batch sizes: Sarathi-Serve (OSDI'24), section 4.3"
    requests = 1500

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        arrivals = _arrivals(stage, self.requests, seed)
        slo = objective(stage)
        targets = {"target_ttft_ms": 1e3 * slo.ttft, "target_itl_ms": 1e3 * slo.itl}
        seqs = [max(1, round(stage.max_num_seqs * part)) for part in SEQS]
        most = {"max_num_batched_tokens": stage.tokens(BUDGETS[-1])}
        arms = [
            Arm(f"{num}, {tokens}", arrivals, {"max_num_seqs": num, "max_num_batched_tokens": stage.tokens(tokens)})
            for num in seqs
            for tokens in BUDGETS
        ]
        arms += [
            Arm(f"{num}, adaptive", arrivals, {"max_num_seqs": num, "token_budget": "adaptive", **most, **targets})
            for num in seqs
        ]
        return [*arms, Arm(AUTO, arrivals, {"max_num_seqs": seqs[-1], "auto_tune": "goodput", **most, **targets})]

    def columns(self, stage: Stage) -> list[Column]:
        phase_columns = [Column(f"goodput, {phase}", partial(self.goodput, phase, stage), ".3f") for phase in LOADS]
        return [*phase_columns, TTFT_P99, ITL_P99]

    def goodput(self, phase: str, stage: Stage, result: Result) -> float:
        """Requests per second of a phase that met the objective."""
        begin, end = _spans(stage, self.requests)[phase]
        slo = objective(stage)
        own = (result.arrival >= begin) & (result.arrival < end)
        gap = (result.finish - result.first_token) / np.maximum(result.output - 1, 1)
        met = (result.first_token - result.arrival <= slo.ttft) & (gap <= slo.itl) & own
        return float(met.sum() / (end - begin))

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        fixed = [label for label in results if label != AUTO]

        def mean(label: str, phase: str) -> float:
            return estimate(partial(self.goodput, phase, stage), results[label]).mean

        best = {phase: max(fixed, key=lambda label: mean(label, phase)) for phase in LOADS}

        def share(label: str, phase: str) -> Estimate:
            measure = partial(self.goodput, phase, stage)
            return estimate(lambda own, other: measure(own) / measure(other), results[label], results[best[phase]])

        def worst(label: str) -> Estimate:
            return min((share(label, phase) for phase in LOADS), key=lambda found: found.mean)

        steady = max(fixed, key=lambda label: worst(label).mean)
        return [
            *(
                Verdict.above(
                    f"{phase}: {share(AUTO, phase):.2f} times the goodput of the best fixed setting, {best[phase]} (at "
                    f"least {ENOUGH})",
                    share(AUTO, phase),
                    ENOUGH,
                )
                for phase in LOADS
            ),
            Verdict.below(
                f"no fixed setting has {ENOUGH} of the best in all phases: the nearest, {steady}, has "
                f"{worst(steady):.2f} in its worst phase",
                worst(steady),
                ENOUGH,
            ),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        samples = [sample for sample in results[AUTO][0].samples if sample.tuned]
        for name in samples[0].tuned if samples else ():
            values = np.array([sample.tuned[name] for sample in samples])
            axes.plot([sample.at for sample in samples], values / max(values.max(), 1e-9), label=name, lw=1)
        for phase, (begin, end) in _spans(stage, self.requests).items():
            axes.axvline(begin, color="gray", lw=0.5)
            axes.text((begin + end) / 2, 1.03, phase, ha="center", fontsize="x-small")
        axes.set(xlabel="time, s", ylabel="value, relative to its largest", ylim=(0, 1.12))
        axes.legend()


def _spans(stage: Stage, requests: int) -> dict[str, tuple[float, float]]:
    """The begin and the end of each phase, in seconds. All phases are equally long."""
    rates = sum(sum(_rates(stage, phase)) for phase in LOADS)
    seconds = stage.requests(requests) / rates
    return {phase: (number * seconds, (number + 1) * seconds) for number, phase in enumerate(LOADS)}


def _rates(stage: Stage, phase: str) -> list[float]:
    """Chats and documents per second."""
    return [stage.rate(load, lengths) for load, lengths in zip(LOADS[phase], (CHATS, DOCUMENTS), strict=True)]


def _arrivals(stage: Stage, requests: int, seed: int) -> list[Arrival]:
    arrivals: list[Arrival] = []
    for number, (phase, (begin, end)) in enumerate(_spans(stage, requests).items()):
        streams = [
            _stream(stage.both(lengths), rate, begin, end - begin, (seed, number, kind))
            for kind, (lengths, rate) in enumerate(zip((CHATS, DOCUMENTS), _rates(stage, phase), strict=True))
            if rate
        ]
        arrivals += merge(*streams)
    return arrivals


def _stream(
    lengths: tuple[Lengths, Lengths], rate: float, begin: float, seconds: float, seed: Sequence[int]
) -> list[Arrival]:
    drawn = Stream(Gamma(rate), *lengths).make(2 + round(2 * rate * seconds), seed)
    return [replace(arrival, at=begin + arrival.at) for arrival in drawn if arrival.at < seconds]
