"""Draws the plots of the documentation: `python -m docs.images.draw`."""

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib import pyplot

from inflight.config import EngineConfig
from load_tests.arrivals import AllAtOnce
from load_tests.lengths import Exponential, Uniform
from load_tests.simulate.plots import COLOURS
from load_tests.simulate.simulator import Simulation
from load_tests.simulate.step_cost import A100_LLAMA_8B
from load_tests.traffic import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMAGES = Path(__file__).parent
PERFORMANCE = IMAGES.parent / "performance.md"
SLOTS, REQUESTS, SEED = 8, 40, 3


def throughput() -> None:
    """The first table of the performance page."""
    row = re.compile(r"^\| (\d+) \| (Inflight|vLLM|llama\.cpp) \| (\d+) \|", re.MULTILINE)
    curves: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for users, server, tokens in row.findall(PERFORMANCE.read_text()):
        curves[server].append((int(users), int(tokens)))
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for server, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=server)
    axes.set(xlabel="users", ylabel="output tokens per second", xscale="log", xticks=[1, 8, 32, 64], ylim=(0, None))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(IMAGES / "throughput.svg", metadata={"Date": None})


def batching() -> None:
    """Which request holds which slot, in the simulator."""
    figure, axes = pyplot.subplots(2, 1, figsize=(8, 4.6), sharex=True, layout="constrained")
    for panel, strategy in zip(axes, ("static", "continuous"), strict=True):
        draw_slots(panel, strategy)
    axes[-1].set_xlabel("time, s")
    figure.savefig(IMAGES / "batching.svg", metadata={"Date": None})


def draw_slots(axes: "Axes", strategy: str) -> None:
    """A bar for each request from its admission to its end."""
    spans = served(strategy)
    end = max(stop for _, stop in spans)
    free = [0.0] * SLOTS
    for number, (start, stop) in enumerate(spans):
        slot = min(range(SLOTS), key=lambda s: (free[s] > start, s))
        free[slot] = stop
        colour = COLOURS[number % len(COLOURS)]
        axes.broken_barh([(start, stop - start)], (slot - 0.4, 0.8), facecolor=colour, edgecolor="white")
    busy = sum(stop - start for start, stop in spans) / (SLOTS * end)
    axes.set(ylabel="slot", yticks=[], ylim=(SLOTS - 0.4, -0.6))
    axes.set_title(f"{strategy}: {REQUESTS} requests in {end:.1f} s, slots {busy:.0%} busy", loc="left", fontsize=10)


def served(strategy: str) -> list[tuple[float, float]]:
    """When each request was admitted and when it ended, by admission."""
    arrivals = Stream(AllAtOnce(), Uniform(64, 256), Exponential(128, 512)).make(REQUESTS, SEED)
    config = EngineConfig(
        model="simulated",
        max_num_seqs=SLOTS,
        kv_cache_tokens=100_000,
        batching_strategy=strategy,
        enable_prefix_caching=False,
    )
    simulation = Simulation(arrivals, config, A100_LLAMA_8B)
    running = simulation.scheduler.running
    spans: dict[str, list[float]] = {}
    before, began = set(running), simulation.now
    while simulation.step():
        for request_id in before | running.keys():
            spans.setdefault(request_id, [began, began])[1] = simulation.now
        before, began = set(running), simulation.now
    return sorted((start, stop) for start, stop in spans.values())


if __name__ == "__main__":
    # Text stays text, and the same input gives the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "inflight"})
    throughput()
    batching()
