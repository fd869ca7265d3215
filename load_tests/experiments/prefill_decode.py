"""Prefill and decode on engines of their own, against engines that do both."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inflight.config import EngineConfig
from load_tests.arrivals import Staircase
from load_tests.experiments.estimate import Ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.goodput import Targets, goodput
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Uniform
from load_tests.simulate.pools import Network, simulate_apart, simulate_together
from load_tests.simulate.report import Column
from load_tests.simulate.result import Result
from load_tests.simulate.step_cost import Overlapped, StepCost
from load_tests.traffic import Arrival, Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENGINES = 4
PREFILLS = (2, 3)
"""Of them. With these lengths, one is never the best number."""
PROMPTS, OUTPUTS = (256, 1024, 4096), (16, 48, 128)
"""Mean lengths. Each request has between half and one and a half times as many tokens."""
LOADS = (0.15, 0.3, 0.5, 0.7, 0.9, 1.1)
"""Of the capacity of engines that do both. A run goes through all of them."""
LEVEL_SECONDS_PER_OUTPUT_TOKEN = 0.02
"""A load lasts for more than an answer, so that the requests of a load meet each other."""
FEWEST = 40
"""Mean number of requests at a load, if answers are so short that there would be fewer."""
SMALL, LARGE = 128, 2048
"""Token budgets: with the small one, prompts fit beside decodes while weights are read."""
INFINIBAND, ETHERNET = 25e9, 1.25e9
"""Bytes per second: 200 and 10 Gbit/s."""
TIGHT, BALANCED, STRICT = Targets("tight TTFT", 2, 6), Targets("balanced", 3, 3), Targets("strict TPOT", 10, 1.5)
SPLITWISE = Targets("Splitwise", 3, 1.5)
TARGETS = (TIGHT, BALANCED, STRICT, SPLITWISE)
ADDED, OVERLAPPED = "added", "overlapped"
"""How reading weights and computing make up a step. A GPU is between the two."""


class Cell(NamedTuple):
    """A model of step times, and the mean lengths of prompts and outputs."""

    step: str
    prompt: int
    output: int

    def __str__(self) -> str:
        return f"{self.step}, {self.prompt} / {self.output}"


CELLS = [Cell(*each) for each in itertools.product((ADDED, OVERLAPPED), PROMPTS, OUTPUTS)]
SLOW = Cell(ADDED, 1024, 48)
"""Where a slow network is tried."""
AZURE = {"code": (1024, 16), "chat": (1024, 128)}
"""The lengths nearest to those of the Azure traces, which Splitwise was tested with."""


def _together(cost: StepCost, arrivals: Sequence[Arrival], settings: Mapping[str, Any]) -> Result:
    return simulate_together(arrivals, EngineConfig(model="simulated", **settings), cost, ENGINES)


def _apart(
    cost: StepCost, prefill: int, bytes_per_second: float, arrivals: Sequence[Arrival], settings: Mapping[str, Any]
) -> Result:
    config, network = EngineConfig(model="simulated", **settings), Network(bytes_per_second)
    return simulate_apart(arrivals, config, cost, network, prefill=prefill, decode=ENGINES - prefill)


class PrefillDecode(Experiment):
    """Four engines, each on a machine of its own. The rate rises, and all see the same requests."""

    name = "prefill_decode"
    title = "Goodput with prefill apart from decode, relative to engines that do both"
    claim = (
        "Prefill apart from decode serves up to 7.4 times the requests within both targets; it wins with strict "
        "targets for gaps and loses with tight ones for first tokens, and neither wins at balance; code and chat get "
        "2.35 times the throughput"
    )
    source = "DistServe (OSDI'24); TaiChi (arXiv 2508.01989); Splitwise (ISCA'24)"
    simulated_only = True

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        return [arm for cell in CELLS for arm in self._arms(stage, cell, seed)]

    def _arms(self, stage: Stage, cell: Cell, seed: int) -> list[Arm]:
        cost = _cost(cell.step, stage)
        arrivals = self._arrivals(replace(stage, cost=cost), cell, seed)
        settings = {
            "kv_cache_tokens": stage.cache_tokens,
            "max_num_seqs": 256,
            "max_num_batched_tokens": LARGE,
            "max_queue_size": len(arrivals),
            "enable_prefix_caching": False,
        }
        small = settings | {"max_num_seqs": SMALL, "max_num_batched_tokens": SMALL}
        networks = {"": INFINIBAND, ", 10 Gbit/s": ETHERNET} if cell == SLOW else {"": INFINIBAND}
        apart = [
            Arm(f"{cell}, {_split(prefill)}{name}", arrivals, settings, partial(_apart, cost, prefill, rate))
            for name, rate in networks.items()
            for prefill in PREFILLS
        ]
        return [
            Arm(f"{cell}, {SMALL}", arrivals, small, partial(_together, cost)),
            Arm(f"{cell}, {LARGE}", arrivals, settings, partial(_together, cost)),
            *apart,
        ]

    def _arrivals(self, stage: Stage, cell: Cell, seed: int) -> list[Arrival]:
        lengths = Uniform(cell.prompt // 2, cell.prompt * 3 // 2), Uniform(cell.output // 2, cell.output * 3 // 2)
        rates = tuple(ENGINES * stage.rate(load, lengths) for load in LOADS)
        seconds = max(LEVEL_SECONDS_PER_OUTPUT_TOKEN * cell.output, FEWEST * len(LOADS) / sum(rates))
        count = stage.requests(round(sum(rates) * seconds))
        times = Staircase(rates, count / sum(rates))
        return Stream(times, *stage.both(lengths)).make(count, (seed, cell.prompt, cell.output))

    def columns(self, stage: Stage) -> list[Column]:
        return [Column(each.name, _goodput(each, stage.cost), ".2f") for each in TARGETS]

    def rows(self, results: Results, stage: Stage) -> dict[str, list[str]]:
        """A row for each cell: apart relative to together."""
        return {
            str(cell): [format(Ratio.of(_gains(results, stage, cell, each)), ".2f") for each in TARGETS]
            for cell in CELLS
        }

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        found = [verdict for step in (ADDED, OVERLAPPED) for verdict in self._verdicts(results, stage, step)]
        slow = Ratio.of(_gains(results, stage, SLOW, STRICT, network=", 10 Gbit/s"))
        return [*found, Verdict.above(f"10 Gbit/s: {STRICT.name}, {SLOW}: {slow:.2f} times (above 1)", slow, 1)]

    def _verdicts(self, results: Results, stage: Stage, step: str) -> list[Verdict]:
        cells = [cell for cell in CELLS if cell.step == step]

        def gain(cell: Cell, targets: Targets, budgets: Sequence[int]) -> Ratio:
            return Ratio.of(_gains(results, stage, cell, targets, budgets))

        def overall(targets: Targets) -> Ratio:
            gains = np.log([_gains(results, stage, cell, targets) for cell in cells])
            return Ratio.of(np.exp(gains.mean(axis=0)).tolist())

        most, where, targets = max(
            ((gain(cell, targets, [LARGE]), cell, targets) for cell in cells for targets in TARGETS),
            key=lambda each: each[0].mean,
        )
        tight, balanced, strict = (overall(each) for each in (TIGHT, BALANCED, STRICT))
        azure = {name: gain(Cell(step, *lengths), SPLITWISE, [LARGE]) for name, lengths in AZURE.items()}
        return [
            Verdict.above(f"DistServe: up to {most:.2f} times ({targets.name}, {where}; claimed: 7.4)", most, 7.4),
            Verdict.below(f"TaiChi, {step}: {TIGHT.name}: {tight:.2f} times (below 1)", tight, 1),
            Verdict.above(f"TaiChi, {step}: {STRICT.name}: {strict:.2f} times (above 1)", strict, 1),
            Verdict.within(f"TaiChi, {step}: balanced: {balanced:.2f} times (0.8 to 1.25)", balanced, 0.8, 1.25),
            *(
                Verdict.above(f"Splitwise, {step}: {name}: {times:.2f} times (at least 2.35)", times, 2.35)
                for name, times in azure.items()
            ),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        rows = list(itertools.product((ADDED, OVERLAPPED), PROMPTS))
        columns = list(itertools.product(TARGETS, OUTPUTS))
        gains = [
            [Ratio.of(_gains(results, stage, Cell(*row, output), each)).mean for each, output in columns]
            for row in rows
        ]
        image = axes.imshow(np.log2(gains), cmap="RdBu", vmin=-2, vmax=2, aspect="auto")
        for (row, column), value in np.ndenumerate(gains):
            color = "black" if 0.4 < value < 2.5 else "white"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize="small")
        middle = OUTPUTS[len(OUTPUTS) // 2]
        labels = [
            f"{output}" + (f"\n{each.name}\n{each.ttft}x, {each.tpot}x" if output == middle else "")
            for each, output in columns
        ]
        axes.set_xticks(range(len(columns)), labels)
        axes.set_yticks(range(len(rows)), [f"{step}, {prompt}" for step, prompt in rows])
        for edge in range(1, len(TARGETS)):
            axes.axvline(edge * len(OUTPUTS) - 0.5, color="white", lw=6)
        axes.axhline(len(PROMPTS) - 0.5, color="white", lw=6)
        axes.set(xlabel="output tokens, and targets for TTFT and TPOT", ylabel="step times, and prompt tokens")
        bar = axes.figure.colorbar(image, ax=axes, ticks=range(-2, 3), extend="max")
        bar.ax.set_yticklabels(["1/4", "1/2", "1", "2", "4"])


def _split(prefill: int) -> str:
    return f"{prefill} + {ENGINES - prefill}"


def _cost(step: str, stage: Stage) -> StepCost:
    return stage.cost if step == ADDED else Overlapped(**vars(stage.cost))


def _goodput(targets: Targets, cost: StepCost) -> Callable[[Result], float]:
    return partial(goodput, targets=targets, cost=cost, levels=len(LOADS))


def _gains(
    results: Results,
    stage: Stage,
    cell: Cell,
    targets: Targets,
    budgets: Sequence[int] = (SMALL, LARGE),
    network: str = "",
) -> list[float]:
    """By seed, the goodput of the best split relative to that of the best budget of engines that do both.

    The best are those with the highest mean over the seeds.
    """
    measure = _goodput(targets, _cost(cell.step, stage))

    def best(ways: Sequence[str]) -> list[float]:
        return max(([measure(result) for result in results[f"{cell}, {way}"]] for way in ways), key=sum)

    apart = best([f"{_split(prefill)}{network}" for prefill in PREFILLS])
    return [a / b for a, b in zip(apart, best([str(budget) for budget in budgets]), strict=True)]
