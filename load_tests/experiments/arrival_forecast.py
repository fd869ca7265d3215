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
    KeepsMore,
    Oracle,
    Stretches,
    StretchesInQuiet,
    WaitsForArrivals,
    YieldsToArrivals,
    simulate_with,
)
from load_tests.simulate.report import E2E_MEAN, E2E_P99, ITL_P99, TTFT_MEAN, TTFT_P99, Column
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
SMALL_CACHE_REQUESTS, SMALL_CACHE_LOADS = 300, (0.95,)
"""With fewer requests, and at lower loads, few wait for blocks."""
URGENT = 1 / 3
"""Share of the requests that are urgent where the cache is small: those with the shortest prompts."""
REQUEST_TOKENS = 1366
"""Tokens of a chat of mean length at its end."""
SECONDS_PER_TOKEN = Column("s per 1k tokens", Result.seconds_per_thousand, ".3f")
MEASURES = (TTFT_MEAN, TTFT_P99, E2E_MEAN, E2E_P99, ITL_P99, SECONDS_PER_TOKEN)
"""All of them are better if they are lower."""
GAIN, LOSS = 0.95, 1.02
"""A way pays if one measure improves to this factor, and none gets worse than by the other one."""


class Way(NamedTuple):
    """How the engine serves."""

    oracle: type[Oracle] = Oracle
    has_small_cache: bool = False
    forecast_ms: float = 0.0

    @property
    def base(self) -> str:
        """The label of the way that it is compared with in the table."""
        return BLIND_SMALL if self.has_small_cache else BLIND


BLIND, LONG, WAITS, YIELDS, STRETCHES = (
    "no forecast",
    "no forecast, long steps",
    "oracle waits",
    "oracle yields",
    "oracle stretches in quiet",
)
BLIND_SMALL, MORE, FORECAST, KEEPS = (
    "no forecast, small cache",
    "no forecast, keeps more blocks",
    "forecast keeps blocks",
    "oracle keeps blocks",
)
WAYS = {
    BLIND: Way(),
    LONG: Way(Stretches),
    WAITS: Way(WaitsForArrivals),
    YIELDS: Way(YieldsToArrivals),
    STRETCHES: Way(StretchesInQuiet),
    BLIND_SMALL: Way(has_small_cache=True),
    MORE: Way(KeepsMore, True),
    FORECAST: Way(Oracle, True, 1000.0),
    KEEPS: Way(KeepsBlocks, True),
}
RIVALS = (
    (WAITS, BLIND),
    (YIELDS, BLIND),
    (STRETCHES, LONG),
    (KEEPS, BLIND_SMALL),
    (FORECAST, BLIND_SMALL),
    (FORECAST, MORE),
)
"""Ways that know or expect something, each with one that does not."""


def _serve(cost: StepCost, oracle: type[Oracle], arrivals: Sequence[Arrival], settings: Mapping[str, Any]) -> Result:
    return simulate_with(oracle, arrivals, EngineConfig(model="simulated", **settings), cost)


class ArrivalForecast(Experiment):
    """Requests that come in bursts, and with `--traces` those of two services as recorded."""

    name = "arrival_forecast"
    title = "What a forecast of arrivals gains, by use: the measure that changes to the best, and to the worst"
    claim = (
        "Knowing when requests will come, an engine answers sooner: it waits with a step for those that come during "
        "it, ends a step as they come, lengthens steps while none comes, and keeps cache blocks for urgent ones"
    )
    source = "batches that follow a forecast of arrivals: BATCH (SC'20); here with an oracle in place of the forecast"
    requests = 120
    simulated_only = True

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        arms = []
        for has_small_cache in (False, True):
            for load, service in self._places(stage, has_small_cache):
                arrivals = self._arrivals(stage, service, load, seed, has_small_cache)
                for name in _ways(has_small_cache):
                    way, label = WAYS[name], _label(service, load, name)
                    serve = partial(_serve, stage.cost, way.oracle)
                    arms.append(Arm(label, arrivals, _settings(stage, len(arrivals), way), serve))
        return arms

    def _places(self, stage: Stage, has_small_cache: bool) -> list[tuple[float, str]]:
        loads = SMALL_CACHE_LOADS if has_small_cache else LOADS
        return list(itertools.product(loads, self._services(stage)))

    def _services(self, stage: Stage) -> list[str]:
        return [BURSTS, *(FILES if stage.traces is not None else ())]

    def _arrivals(self, stage: Stage, service: str, load: float, seed: int, has_small_cache: bool) -> list[Arrival]:
        seqs = SMALL_CACHE / REQUEST_TOKENS if has_small_cache else stage.max_num_seqs
        count = stage.requests(SMALL_CACHE_REQUESTS if has_small_cache else self.requests)
        limit = stage.tokens(MAX_TOKENS)
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
        for has_small_cache in (False, True):
            for load, service in self._places(stage, has_small_cache):
                for name in _ways(has_small_cache):
                    found[_label(service, load, name)] = self._cells(results, service, load, name)
        return found

    def _cells(self, results: Results, service: str, load: float, name: str) -> list[str]:
        base = WAYS[name].base
        if name == base:
            runs = results[_label(service, load, name)]
            return [format(estimate(column.value, runs), column.form) for column in MEASURES]
        return [f"x {factor:.3f}" for factor in self._factors(results, service, load, (name, base)).values()]

    def _factors(self, results: Results, service: str, load: float, pair: tuple[str, str]) -> dict[str, Ratio]:
        """By what factor each measure differs between two ways."""
        runs, other = (results[_label(service, load, name)] for name in pair)
        return {column.name: ratio(column, runs, other) for column in MEASURES}

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        return [self._verdict(results, stage, pair) for pair in RIVALS]

    def _verdict(self, results: Results, stage: Stage, pair: tuple[str, str]) -> Verdict:
        """Whether a way pays anywhere: by the measure and the load where it gains most."""
        name, rival = pair
        found = [
            (factor, f"{measure.split(',')[0]} of {service}, {load}")
            for load, service in self._places(stage, WAYS[name].has_small_cache)
            if max((factors := self._factors(results, service, load, pair)).values(), key=_mean).mean <= LOSS
            for measure, factor in factors.items()
        ]
        if not found:
            return Verdict.always(f"{name}: at each load it makes a measure worse than '{rival}'", [False])
        best, where = min(found, key=lambda each: each[0].mean)
        text = f"{name}: at best {best:.3f} times the value of '{rival}', {where} (pays up to {GAIN})"
        return Verdict.below(text, best, GAIN)

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        ticks = []
        for has_small_cache in (False, True):
            for load, service in self._places(stage, has_small_cache):
                ticks.append(f"{service}\n{load}" + (", small" if has_small_cache else ""))
                base, *others = _ways(has_small_cache)
                for number, name in enumerate(others):
                    factors = self._factors(results, service, load, (name, base)).values()
                    ends = [pick(factors, key=_mean).mean for pick in (min, max)]
                    x = len(ticks) - 1 + (number - 1.5) / 8
                    axes.plot([x, x], ends, color=f"C{list(WAYS).index(name)}", marker="_", lw=3, label=name)
        axes.set_xticks(range(len(ticks)), ticks, fontsize="x-small")
        axes.axhline(1, color="gray", lw=0.5)
        axes.set(
            xlabel="requests, their load as a fraction of the machine's capacity, and whether the cache is small",
            ylabel="times the value without a forecast (below 1 is better)",
        )
        handles, names = axes.get_legend_handles_labels()
        unique = dict(zip(names, handles, strict=True))
        axes.legend(unique.values(), unique.keys(), fontsize="x-small")


def _ways(has_small_cache: bool) -> list[str]:
    """The ways on one kind of machine. The first one is the base of the others."""
    return [name for name, way in WAYS.items() if way.has_small_cache == has_small_cache]


def _mean(factor: Ratio) -> float:
    return factor.mean


def _label(service: str, load: float, name: str) -> str:
    return f"{service}, {load}, {name}"


def _with_levels(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same requests, with those that have short prompts as the urgent ones."""
    longest = np.quantile([arrival.prompt_tokens for arrival in arrivals], URGENT)
    return [replace(arrival, priority=1 if arrival.prompt_tokens <= longest else 2) for arrival in arrivals]


def _settings(stage: Stage, requests: int, way: Way) -> dict[str, Any]:
    common = {
        "auto_tune": "throughput",
        "max_num_seqs": stage.max_num_seqs,
        "max_queue_size": requests,
        "enable_prefix_caching": False,
    }
    if not way.has_small_cache:
        return {**common, "kv_cache_tokens": stage.cache_tokens}
    levels = {"priority_levels": 2, "default_priority_level": 2, "priority_ageing_seconds": 1e6}
    return {
        **common,
        **levels,
        "kv_cache_tokens": stage.tokens(SMALL_CACHE),
        "scheduling_policy": "priority",
        "arrival_forecast_ms": way.forecast_ms,
    }
