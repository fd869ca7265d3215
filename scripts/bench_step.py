"""`make bench-step`: where the time of a step goes on this CPU, and what each way to make it faster brings.

A step is measured in process, without scheduler and server: a batch is laid out, goes through the model and is sampled,
greedily, from the default model in bfloat16. Batches are decodes, so many rows of one token with 128 to 192 tokens
cached, or the whole of one prompt. Times are medians of steps that take turns with what they are compared with.

The floor is what the step's matrix products take alone, one after the other, with the same weights. Parts are
self times that torch's profiler saw, which costs time itself where operators are small; Python is the rest of the step,
measured without the profiler, and `py-spy record --threads --pid` of the model's process shows it in a server.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm
from transformers.utils import logging

from inflight import EngineConfig, SamplingParams
from inflight.model.cpu.captured_forward import CapturedForward
from inflight.model.cpu.packed_linear import PackedLinear
from inflight.model.forward import EagerForward, ForwardPass
from inflight.model.loader import LoadedModel, load_model
from inflight.model.ragged_batch import RaggedBatch
from inflight.model.sampler import sample
from inflight.request import Request
from inflight.scheduler.plan import Scheduled, StepPlan
from scripts.bench_report import environment
from scripts.default_model import default_model
from scripts.errors import LauncherError

DECODES = (1, 8, 32, 64)
PROMPTS = (32, 128, 512)
CONTEXTS = (128, 192)
BLOCK_SIZE = 16
SETTINGS: dict[str, Any] = {"dtype": "bfloat16", "device": "cpu", "block_size": BLOCK_SIZE}
ROUNDS = 15
PROFILED = 5
LINEAR, ATTENTION = ("inflight::linear", "aten::addmm", "aten::mm"), ("inflight::paged_attention",)

Step: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """A batch to measure: rows of new tokens after cached ones."""

    name: str
    rows: Sequence[tuple[int, int]]
    """Cached and new tokens of each row."""

    @property
    def num_tokens(self) -> int:
        return sum(new for _, new in self.rows)


def works() -> list[Work]:
    """All batches."""
    first, last = CONTEXTS
    decodes = [Work(f"{n} decodes", [(first + (last - first) * i // n, 1) for i in range(n)]) for n in DECODES]
    return decodes + [Work(f"a prompt of {n}", [(0, n)]) for n in PROMPTS]


def plan_of(work: Work) -> StepPlan:
    """The step of a batch, every row in blocks of its own."""
    free = iter(range(num_blocks(work)))
    shares = []
    for number, (cached, new) in enumerate(work.rows):
        tokens = [(31 * number + 7 * place) % 30_000 + 100 for place in range(cached + new)]
        request = Request(str(number), tokens, SamplingParams(temperature=0.0), max_tokens=1, seed=0)
        request.num_computed = cached
        request.blocks = [next(free) for _ in range(-(-(cached + new) // BLOCK_SIZE))]
        shares.append(Scheduled(request, new))
    return StepPlan(tuple(shares))


def num_blocks(work: Work) -> int:
    """How many blocks a batch takes."""
    return sum(-(-(cached + new) // BLOCK_SIZE) for cached, new in work.rows)


def step_of(model: LoadedModel, forward: ForwardPass, work: Work) -> Step:
    """What the engine does in a step, over a cache of its own."""
    plan = plan_of(work)
    shapes = [layer.shape for layer in model.layers]
    caches = model.backend.allocate(shapes, num_blocks(work), BLOCK_SIZE, model.dtype, model.device)

    def step() -> None:
        with torch.inference_mode():
            batch = RaggedBatch.build(plan, BLOCK_SIZE, model.device)
            sample(forward(batch, caches, batch.logit_rows), batch.sampling)

    return step


def floor_of(model: LoadedModel, work: Work) -> Step:
    """The matrix products of a step alone; those of the head for the sampled rows."""
    module: Any = model.module
    groups = {id(m.group): m.group.packed for m in module.modules() if isinstance(m, PackedLinear)}
    head = module.get_output_embeddings().group.packed
    inputs = {
        id(packed): torch.randn(len(work.rows) if packed is head else work.num_tokens, 2 * packed.shape[1]).bfloat16()
        for packed in groups.values()
    }

    def products() -> None:
        for packed in groups.values():
            torch.ops.inflight.linear(inputs[id(packed)], packed)

    return products


def in_turns(steps: Sequence[Step]) -> list[float]:
    """Median milliseconds of each, run in turns."""
    times: list[list[float]] = [[] for _ in steps]
    for number in range(ROUNDS + 2):
        for step, seconds in zip(steps, times, strict=True):
            started = time.perf_counter()
            step()
            if number >= 2:  # The first ones touch new memory.
                seconds.append(time.perf_counter() - started)
    return [1000 * median(seconds) for seconds in times]


def parts_of(step: Step) -> tuple[float, float, float]:
    """Milliseconds a step in matrix products, attention and all other operators."""
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
        whole, floor = in_turns([step, floor_of(model, work)])
        linear, attention, other = parts_of(step)
        python = max(0.0, whole - linear - attention - other)
        yield (
            f"| {work.name} | {whole:.1f} | {1000 * work.num_tokens / whole:.0f} | {linear:.1f} | {attention:.1f} "
            f"| {other:.1f} | {python:.1f} | {floor:.1f} | {whole / floor:.2f} |"
        )


def shares_of_floor(folder: Path) -> dict[str, float]:
    """How much of each step the floor takes; nothing where the CPU kernels do not serve."""
    model = load_model(EngineConfig(str(folder), **SETTINGS))
    if not isinstance(model.forward, CapturedForward):
        return {}
    shares = {}
    for work in works():
        whole, floor = in_turns([step_of(model, model.forward, work), floor_of(model, work)])
        shares[work.name] = floor / whole
    return shares


def gains_table(model: LoadedModel, portable: LoadedModel) -> Iterator[str]:
    """Lines of the table of what each way to be faster brings."""
    windows = [layer.window for layer in model.layers]
    ways: dict[str, tuple[LoadedModel, ForwardPass]] = {
        "torch's own operators": (portable, portable.forward),
        "CPU kernels": (model, EagerForward(model.module, model.backend, windows)),
        "recorded": (model, CapturedForward(model.module, model.layers)),
        "fused": (model, model.forward),
    }
    yield f"| Step, ms | {' | '.join(ways)} | Gain of each |"
    yield f"|---|{'---:|' * len(ways)}---:|"
    for work in tqdm(works(), desc="what each way brings"):
        times = in_turns([step_of(which, forward, work) for which, forward in ways.values()])
        gains = ", ".join(f"{before / after:.2f}" for before, after in itertools.pairwise(times))
        yield f"| {work.name} | {' | '.join(f'{each:.1f}' for each in times)} | {gains} |"


def main() -> int:
    """Measure and print; the exit status is 1, and a line says why, where the CPU kernels do not serve."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        folder = default_model()
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    model = load_model(EngineConfig(str(folder), **SETTINGS))
    if not isinstance(model.forward, CapturedForward):
        print("error: the CPU kernels do not serve on this machine; the log says why", file=sys.stderr)
        return 1
    lines = [*parts_table(model), ""]
    portable = load_model(EngineConfig(str(folder), **SETTINGS, enable_kernels=False))
    lines += [*gains_table(model, portable), ""]
    lines.append("; ".join(f"{name}: {value}" for name, value in environment("bfloat16", "cpu").items()))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
