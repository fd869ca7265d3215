"""A load that changes twice, under fixed settings and under settings that tune themselves."""

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from load_tests.arrivals import Gamma
from load_tests.experiments.experiment import Arm, Experiment, Results, Verdict
from load_tests.experiments.stage import Stage
from load_tests.lengths import Uniform
from load_tests.simulate.report import ITL_P99, TTFT_P99, Column
from load_tests.simulate.result import Result
from load_tests.slo import Slo
from load_tests.traffic import Arrival, Stream, merge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHATS = Uniform(64, 192), Uniform(128, 384)
DOCUMENTS = Uniform(2048, 6144), Uniform(32, 96)
LOADS = {"chats": (0.8, 0.0), "documents": (0.0, 0.65), "both": (0.35, 0.45)}
"""Load of chats and of documents in each phase, as a fraction of the machine's capacity."""
SEEDS = (1, 2, 3)
SEQS = (0.5, 1)
"""Of the stage's `max_num_seqs`."""
BUDGETS = (256, 512, 2048)
AUTO = "auto_tune"
ENOUGH = 0.95


class AutoTune(Experiment):
    """Chats, then long documents, then both; this three times, with other requests each time."""

    name = "auto_tune"
    title = "Settings that auto_tune chose while the load changed (relative to their bounds)"
    claim = (
        "Settings that follow the step-time model and measured latencies have at least 0.95 of the goodput that the "
        "best fixed setting has in each phase of a load, though no fixed setting is the best in all phases"
    )
    source = "this project; SLO-aware batch sizes: Sarathi-Serve (OSDI'24), section 4.3"
    requests = 4500

    def slo(self, stage: Stage) -> Slo:
        """The first token within the time of 16,384 prompt tokens, and the others within that of 512 and a batch."""
        cost = stage.cost
        batch = stage.max_num_seqs * cost.per_cached_token * stage.tokens(512)
        return Slo(
            ttft=cost.per_step + cost.per_token * stage.tokens(16_384),
            itl=cost.per_step + cost.per_token * stage.tokens(384) + batch,
        )

    def arms(self, stage: Stage) -> list[Arm]:
        arrivals, _ = phases(stage, self.requests)
        slo = self.slo(stage)
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
        phase_columns = [
            Column(f"goodput, {phase}", lambda r, phase=phase: float(self.goodput(r, phase, stage).mean()), ".3f")  # type: ignore[misc]
            for phase in LOADS
        ]
        return [*phase_columns, TTFT_P99, ITL_P99]

    def goodput(self, result: Result, phase: str, stage: Stage) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Requests per second of a phase that met the objective, for each seed."""
        _, spans = phases(stage, self.requests)
        slo = self.slo(stage)
        rates = []
        for name, begin, end in spans:
            if name == phase:
                own = (result.arrival >= begin) & (result.arrival < end)
                gap = (result.finish - result.first_token) / np.maximum(result.output - 1, 1)
                met = (result.first_token - result.arrival <= slo.ttft) & (gap <= slo.itl) & own
                rates.append(met.sum() / (end - begin))
        return np.array(rates)

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        verdicts = []
        best_of = {}
        for phase in LOADS:
            fixed = {x: float(self.goodput(r, phase, stage).mean()) for x, r in results.items() if x != AUTO}
            best_of[phase] = best = max(fixed, key=lambda label: fixed[label])
            ratios = self.goodput(results[AUTO], phase, stage) / np.maximum(
                self.goodput(results[best], phase, stage), 1e-9
            )
            own = float(self.goodput(results[AUTO], phase, stage).mean())
            spread = ", ".join(f"{ratio:.3f}" for ratio in ratios)
            verdicts.append(
                Verdict(
                    f"{phase}: {own:.2f} requests a second within the objective; best fixed, {best}: {fixed[best]:.2f} "
                    f"(at least {ENOUGH}; ratio by seed: {spread})",
                    own >= ENOUGH * fixed[best],
                )
            )
        worst = {
            label: min(
                float(
                    self.goodput(r, phase, stage).mean()
                    / max(self.goodput(results[best_of[phase]], phase, stage).mean(), 1e-9)
                )
                for phase in LOADS
            )
            for label, r in results.items()
            if label != AUTO
        }
        steady = max(worst, key=lambda label: worst[label])
        return [
            *verdicts,
            Verdict(
                f"no fixed setting has {ENOUGH} of the best in all phases: the nearest, {steady}, has "
                f"{worst[steady]:.2f} in its worst phase",
                worst[steady] < ENOUGH,
            ),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        samples = [sample for sample in results[AUTO].samples if sample.tuned]
        for name in samples[0].tuned if samples else ():
            values = np.array([sample.tuned[name] for sample in samples])
            axes.plot([sample.at for sample in samples], values / max(values.max(), 1e-9), label=name, lw=1)
        for phase, begin, end in phases(stage, self.requests)[1]:
            axes.axvline(begin, color="gray", lw=0.5)
            axes.text((begin + end) / 2, 1.03, phase, ha="center", fontsize="x-small")
        axes.set(xlabel="time, s", ylabel="value, relative to its largest", ylim=(0, 1.12))
        axes.legend()


@cache
def phases(stage: Stage, requests: int) -> tuple[list[Arrival], list[tuple[str, float, float]]]:
    """The requests, and the name, the begin and the end of each phase in seconds."""
    arrivals: list[Arrival] = []
    spans = []
    count = stage.requests(requests)
    rates = {
        phase: [stage.rate(load, lengths) for load, lengths in zip(loads, (CHATS, DOCUMENTS), strict=True)]
        for phase, loads in LOADS.items()
    }
    seconds = count / sum(map(sum, rates.values())) / len(SEEDS)
    begin, scale = 0.0, stage.length_scale
    for seed in SEEDS:
        for phase, (chats, documents) in rates.items():
            streams = [
                _stream((prompts.scaled(scale), outputs.scaled(scale)), rate, begin, seconds, seed)
                for (prompts, outputs), rate in ((CHATS, chats), (DOCUMENTS, documents))
                if rate
            ]
            arrivals += merge(*streams)
            spans.append((phase, begin, begin + seconds))
            begin += seconds
    return arrivals, spans


def _stream(lengths: tuple[Uniform, Uniform], rate: float, begin: float, seconds: float, seed: int) -> list[Arrival]:
    drawn = Stream(Gamma(rate), *lengths, max_tokens=lengths[1].high).make(2 + round(2 * rate * seconds), seed)
    return [replace(arrival, at=begin + arrival.at) for arrival in drawn if arrival.at < seconds]
