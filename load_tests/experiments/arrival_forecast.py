"""What an engine could gain if it knew when requests will come."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inflight.config import EngineConfig
from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import Ratio, estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.recorded import FILES, recorded
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import AZURE_CHAT
from load_tests.simulate.oracle import (
    KeepsBlocks,
    Oracle,
    Stretches,
    StretchesInQuiet,
    WaitsForArrivals,
    YieldsToArrivals,
    simulate_with,
)
from load_tests.simulate.report import E2E_MEAN, E2E_P99, ITL_P99, THROUGHPUT, TTFT_MEAN, TTFT_P99, Column
from load_tests.simulate.result import Result
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Arrival, Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOADS = (0.6, 0.8, 0.95)
"""Fractions of the machine's capacity."""
BURSTS, CV = "bursts", 3.0
"""Synthetic load: chat lengths, and gaps between arrivals with this coefficient of variation."""
MAX_TOKENS = 2000
SMALL_CACHE = 20_000
"""Tokens: so few that requests wait for blocks."""
URGENT = 1 / 3
"""Share of the requests that are urgent where the cache is small: those with the shortest prompts."""
REQUEST_TOKENS = 1366
"""Tokens of a chat of mean length at its end."""
MEASURES = (TTFT_MEAN, TTFT_P99, E2E_MEAN, E2E_P99, ITL_P99, THROUGHPUT)
GAIN, LOSS = 0.95, 1.02
"""A use of the knowledge pays if one measure improves to this factor, and none gets worse than by the other one."""


class Way(NamedTuple):
    """A use of the knowledge."""

    oracle: type[Oracle]
    against: str
    """The label of what it is compared with, which knows nothing."""
    has_small_cache: bool = False


BLIND, BLIND_SMALL, STRETCHED = "no forecast", "no forecast, small cache", "long steps, no forecast"
WITHOUT = {BLIND: Way(Oracle, ""), BLIND_SMALL: Way(Oracle, "", True), STRETCHED: Way(Stretches, BLIND)}
ORACLES = {
    "oracle waits": Way(WaitsForArrivals, BLIND),
    "oracle yields": Way(YieldsToArrivals, BLIND),
    "oracle stretches in quiet": Way(StretchesInQuiet, BLIND),
    "oracle keeps blocks": Way(KeepsBlocks, BLIND_SMALL, True),
}
WAYS = WITHOUT | ORACLES


def _serve(cost: StepCost, oracle: type[Oracle], arrivals: Sequence[Arrival], settings: Mapping[str, Any]) -> Result:
    return simulate_with(oracle, arrivals, EngineConfig(model="simulated", **settings), cost)


class ArrivalForecast(Experiment):
    """Requests that come in bursts, and with `--traces` those of two services as recorded."""

    name = "arrival_forecast"
    title = "Gain of knowing when requests will come, by use of the knowledge: the best and the worst measure"
    claim = (
        "Knowing when requests will come, an engine answers sooner: it waits with a step for those that come during "
        "it, ends a step as they come, lengthens steps while none comes, and keeps cache blocks for urgent ones"
    )
    source = "batches that follow a forecast of arrivals: BATCH (SC'20); here with an oracle in place of the forecast"
    requests = 300
    simulated_only = True

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        arms = []
        for load, service in itertools.product(LOADS, self._services(stage)):
            for has_small_cache in (False, True):
                arrivals = self._arrivals(stage, service, load, seed, has_small_cache)
                settings = _settings(stage, len(arrivals), has_small_cache)
                arms += [
                    Arm(_label(service, load, name), arrivals, settings, partial(_serve, stage.cost, way.oracle))
                    for name, way in WAYS.items()
                    if way.has_small_cache == has_small_cache
                ]
        return arms

    def _services(self, stage: Stage) -> list[str]:
        return [BURSTS, *(FILES if stage.traces is not None else ())]

    def _arrivals(self, stage: Stage, service: str, load: float, seed: int, has_small_cache: bool) -> list[Arrival]:
        seqs = SMALL_CACHE / REQUEST_TOKENS if has_small_cache else stage.max_num_seqs
        count, limit = stage.requests(self.requests), stage.tokens(MAX_TOKENS)
        if service == BURSTS:
            times = Gamma(stage.rate(load, AZURE_CHAT, seqs), CV)
            arrivals = Stream(times, *stage.both(AZURE_CHAT), max_tokens=limit).make(count, seed)
        else:
            arrivals = recorded(stage, service, count, load, seed, num_seqs=seqs, max_tokens=limit)
        return _with_levels(arrivals) if has_small_cache else arrivals

    def columns(self, stage: Stage) -> list[Column]:
        return list(MEASURES)

    def rows(self, results: Results, stage: Stage) -> dict[str, list[str]]:
        found = {}
        for load, service in itertools.product(LOADS, self._services(stage)):
            for name, way in WAYS.items():
                runs = results[_label(service, load, name)]
                if way.against:
                    other = results[_label(service, load, way.against)]
                    cells = [f"x {ratio(column, runs, other):.3f}" for column in MEASURES]
                else:
                    cells = [format(estimate(column.value, runs), column.form) for column in MEASURES]
                found[_label(service, load, name)] = cells
        return found

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        found = []
        for name in ORACLES:
            best: tuple[Ratio, str] | None = None
            for load, service in itertools.product(LOADS, self._services(stage)):
                factors = self._factors(results, service, load, name)
                if any(factor.mean > LOSS for factor in factors.values()):
                    continue
                measure = min(factors, key=lambda each: factors[each].mean)
                if best is None or factors[measure].mean < best[0].mean:
                    best = factors[measure], f"{measure} at {service}, {load}"
            if best is None:
                found.append(Verdict.always(f"{name}: nowhere without another measure getting worse", [False]))
            else:
                text = f"{name}: at best {best[0]:.3f} times, {best[1]} (at most {GAIN} would pay)"
                found.append(Verdict.below(text, best[0], GAIN))
        return found

    def _factors(self, results: Results, service: str, load: float, name: str) -> dict[str, Ratio]:
        """By what factor each measure changes; below 1 is better, for throughput as well."""
        runs, other = (results[_label(service, load, label)] for label in (name, WAYS[name].against))
        factors = {column.name: ratio(column, runs, other) for column in MEASURES[:-1]}
        return factors | {THROUGHPUT.name: ratio(THROUGHPUT, other, runs)}

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        names = [name for name, way in WAYS.items() if way.against]
        for place, (service, load) in enumerate(itertools.product(self._services(stage), LOADS)):
            for number, name in enumerate(names):
                factors = [each.mean for each in self._factors(results, service, load, name).values()]
                x, label = place + (number - 1.5) / 6, name if not place else None
                axes.plot([x, x], [min(factors), max(factors)], color=f"C{number}", marker="_", lw=3, label=label)
        ticks = [f"{service}\n{load}" for service, load in itertools.product(self._services(stage), LOADS)]
        axes.set_xticks(range(len(ticks)), ticks, fontsize="x-small")
        axes.axhline(1, color="gray", lw=0.5)
        axes.axhline(GAIN, color="gray", ls="--", lw=0.5)
        axes.set(ylabel="times what it is without a forecast (below 1 is better)")
        axes.legend(fontsize="x-small")


def _label(service: str, load: float, name: str) -> str:
    return f"{service}, {load}, {name}"


def _with_levels(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same requests, with those that have short prompts as the urgent ones."""
    longest = np.quantile([arrival.prompt_tokens for arrival in arrivals], URGENT)
    return [replace(arrival, priority=1 if arrival.prompt_tokens <= longest else 2) for arrival in arrivals]


def _settings(stage: Stage, requests: int, has_small_cache: bool) -> dict[str, Any]:
    common = {
        "auto_tune": "throughput",
        "max_num_seqs": stage.max_num_seqs,
        "max_queue_size": requests,
        "enable_prefix_caching": False,
    }
    if not has_small_cache:
        return {**common, "kv_cache_tokens": stage.cache_tokens}
    levels = {"priority_levels": 2, "default_priority_level": 2, "priority_ageing_seconds": 1e6}
    return {
        **common,
        **levels,
        "kv_cache_tokens": stage.tokens(SMALL_CACHE),
        "scheduling_policy": "priority",
    }
