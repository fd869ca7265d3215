"""One engine over four devices against four engines with one device each."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from inflight.config import EngineConfig
from load_tests.arrivals import AllAtOnce, Gamma
from load_tests.experiments.estimate import estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Lengths, Uniform
from load_tests.simulate.plots import label_plainly
from load_tests.simulate.pools import simulate_together
from load_tests.simulate.report import E2E_MEAN, ITL_P50, THROUGHPUT, TTFT_P50, TTFT_P99, Column
from load_tests.simulate.result import Result
from load_tests.simulate.step_cost import StepCost
from load_tests.simulate.tensor_parallel import LLAMA_8B, NVLINK, PCIE, a100_cache_tokens, tensor_parallel
from load_tests.traffic import Arrival, Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEVICES = 4
KINDS = {
    "chats": (Uniform(256, 768), Uniform(64, 192)),
    "documents": (Uniform(2048, 6144), Uniform(16, 48)),
}
"""Lengths of prompts and outputs."""
LOADS = (0.1, 0.4, 0.8)
"""Of the capacity of engines with one device each."""
REPLICAS = "4 engines"
LINKS = {"1 engine, NVLink": NVLINK, "1 engine, PCIe": PCIE}
SATURATED = "all at once"
AT_LOADS: Sequence[float | str] = (*LOADS, SATURATED)


def _serve(cost: StepCost, engines: int, arrivals: Sequence[Arrival], settings: Mapping[str, Any]) -> Result:
    return simulate_together(arrivals, EngineConfig(model="simulated", **settings), cost, engines)


class TensorParallel(Experiment):
    """The same requests, devices and limits; a model that one device holds."""

    name = "tensor_parallel"
    title = "Mean time from arrival to last token, by load"
    claim = (
        "At low rates a model divided over several devices answers sooner than replicas on one device each; replicas "
        "have more throughput"
    )
    source = "AlpaServe (OSDI'23); DistServe (OSDI'24), section 3"
    requests = 300
    simulated_only = True

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        arms = []
        for number, (kind, load) in enumerate(itertools.product(KINDS, AT_LOADS)):
            arrivals = self._arrivals(stage, KINDS[kind], load, (seed, number))
            alone = _settings(len(arrivals), stage.cache_tokens, 1)
            arms.append(Arm(_label(kind, REPLICAS, load), arrivals, alone, partial(_serve, stage.cost, DEVICES)))
            for name, link in LINKS.items():
                settings = _settings(len(arrivals), a100_cache_tokens(DEVICES), DEVICES)
                cost = tensor_parallel(stage.cost, DEVICES, link, LLAMA_8B)
                arms.append(Arm(_label(kind, name, load), arrivals, settings, partial(_serve, cost, 1)))
        return arms

    def _arrivals(
        self, stage: Stage, lengths: tuple[Lengths, Lengths], load: float | str, seed: Sequence[int]
    ) -> list[Arrival]:
        times = AllAtOnce() if isinstance(load, str) else Gamma(DEVICES * stage.rate(load, lengths))
        return Stream(times, *stage.both(lengths)).make(stage.requests(self.requests), seed)

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_P50, TTFT_P99, ITL_P50, E2E_MEAN]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        found = []
        for kind, name in itertools.product(KINDS, LINKS):
            one, four = (results[_label(kind, way, LOADS[0])] for way in (name, REPLICAS))
            sooner = ratio(E2E_MEAN, one, four)
            text = f"{kind}, load {LOADS[0]}: {name} has {sooner:.2f} times the E2E mean of {REPLICAS} (below 1)"
            found.append(Verdict.below(text, sooner, 1))
        for kind, name in itertools.product(KINDS, LINKS):
            one, four = (results[_label(kind, way, SATURATED)] for way in (name, REPLICAS))
            more = ratio(THROUGHPUT, four, one)
            text = f"{kind}, {SATURATED}: {REPLICAS} have {more:.2f} times the throughput of {name} (above 1)"
            found.append(Verdict.above(text, more, 1))
        return found

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        for (kind, marker), name in itertools.product(zip(KINDS, "os", strict=True), (REPLICAS, *LINKS)):
            found = [estimate(E2E_MEAN.value, results[_label(kind, name, load)]) for load in LOADS]
            errors = [each.half_width or 0.0 for each in found]
            axes.errorbar(
                LOADS,
                [each.mean for each in found],
                yerr=errors,
                marker=marker,
                ls="-" if marker == "o" else "--",
                color=f"C{(REPLICAS, *LINKS).index(name)}",
                capsize=3,
                label=f"{kind}, {name}",
            )
        axes.set(xlabel=f"load, relative to the capacity of {REPLICAS}", ylabel=E2E_MEAN.name, yscale="log")
        label_plainly(axes.yaxis)
        axes.grid(alpha=0.3)
        axes.legend()


def _label(kind: str, way: str, load: float | str) -> str:
    return f"{kind}, {way}, {load}"


def _settings(requests: int, cache_tokens: int, devices: int) -> dict[str, Any]:
    return {
        "kv_cache_tokens": cache_tokens,
        "max_num_seqs": 64 * devices,
        "max_num_batched_tokens": 512 * devices,
        "max_queue_size": requests,
        "enable_prefix_caching": False,
    }
