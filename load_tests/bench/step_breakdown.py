"""`make bench-step`: where the time of a step goes on this CPU, and how much faster each optimisation makes it.

The floor is the time of the step's matrix products alone, one after the other, with the same weights. The parts are
self times from torch's profiler, which adds overhead where operators are small. The column Python is the rest of the
step, measured without the profiler. In a server, `py-spy record --threads --pid` of the model's process shows the
Python part.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm
from transformers.utils import logging

from inflight import EngineConfig
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.forward import EagerForward, ForwardPass
from inflight.model.loading.loader import LoadedModel, load_model
from load_tests.bench.engine_step import SETTINGS, Step, alternating, floor_of, step_of, works
from load_tests.bench.instruction_sets import instruction_sets_table
from load_tests.bench.kernels import kernels_table
from scripts.launch.default_model import default_model
from scripts.launch.environment import environment
from scripts.launch.errors import LauncherError

PROFILED = 5
LINEAR = ("inflight::linear", "inflight::linear_silu_mul", "aten::addmm", "aten::mm")
ATTENTION = ("inflight::paged_attention",)


def parts_of(step: Step) -> tuple[float, float, float]:
    """Milliseconds per step in matrix products, attention and all other operators."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(PROFILED):
            step()
    linear = attention = other = 0.0
    for event in seen.key_averages():
        milliseconds = event.self_cpu_time_total / 1000 / PROFILED
        if event.key in LINEAR:
            linear += milliseconds
        elif event.key in ATTENTION:
            attention += milliseconds
        elif "::" in event.key:
            other += milliseconds
    return linear, attention, other


def parts_table(model: LoadedModel) -> Iterator[str]:
    """Lines of the table of parts."""
    yield "| Step | ms | Tokens/s | Products | Attention | Other operators | Python | Floor | Step to floor |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for work in tqdm(works(), desc="where the time goes"):
        step = step_of(model, model.forward, work)
        whole, floor = alternating([step, floor_of(model, work)])
        linear, attention, other = parts_of(step)
        python = max(0.0, whole - linear - attention - other)
        yield (
            f"| {work.name} | {whole:.1f} | {1000 * work.num_tokens / whole:.0f} | {linear:.1f} | {attention:.1f} "
            f"| {other:.1f} | {python:.1f} | {floor:.1f} | {whole / floor:.2f} |"
        )


def shares_of_floor(folder: Path) -> dict[str, float]:
    """Ratio of the floor to each step. Empty if the CPU kernels are not in use."""
    model = load_model(EngineConfig(str(folder), **SETTINGS))
    if not isinstance(model.forward, TracedForward):
        return {}
    shares = {}
    for work in works():
        whole, floor = alternating([step_of(model, model.forward, work), floor_of(model, work)])
        shares[work.name] = floor / whole
    return shares


def gains_table(model: LoadedModel, portable: LoadedModel) -> Iterator[str]:
    """Lines of the table of optimisations."""
    windows = [layer.window for layer in model.layers]
    ways: dict[str, tuple[LoadedModel, ForwardPass]] = {
        "torch's own operators": (portable, portable.forward),
        "CPU kernels": (model, EagerForward(model.module, model.backend, windows)),
        "traced": (model, TracedForward(model.module, model.layers)),
        "fused": (model, model.forward),
    }
    yield f"| Step, ms | {' | '.join(ways)} | Gain of each |"
    yield f"|---|{'---:|' * len(ways)}---:|"
    for work in tqdm(works(), desc="what each way brings"):
        times = alternating([step_of(which, forward, work) for which, forward in ways.values()])
        gains = ", ".join(f"{before / after:.2f}" for before, after in itertools.pairwise(times))
        yield f"| {work.name} | {' | '.join(f'{each:.1f}' for each in times)} | {gains} |"


def main() -> int:
    """Measure and print the tables. The exit status is 1, with a line that says why, if the CPU kernels are not in
    use."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        folder = default_model()
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    model = load_model(EngineConfig(str(folder), **SETTINGS))
    if not isinstance(model.forward, TracedForward):
        print("error: the CPU kernels are not in use on this machine; the log says why", file=sys.stderr)
        return 1
    lines = [*parts_table(model), ""]
    portable = load_model(EngineConfig(str(folder), **SETTINGS, enable_kernels=False))
    lines += [*gains_table(model, portable), ""]
    lines += [*kernels_table(model), ""]
    lines += [*instruction_sets_table(folder), ""]
    lines.append("; ".join(f"{name}: {value}" for name, value in environment("bfloat16", "cpu").items()))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
