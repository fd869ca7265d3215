"""`make bench-step`: where the time of a step goes on this CPU, and how much faster each optimisation makes it.

The floor is the shortest time that a step can take on this machine: the longer of the time to read its weights and its
part of the KV cache from memory, and the time of its operations with the processor's best instruction for products.
Bandwidth and speed are measured in the same run, with all threads; see ceilings.py.

Products alone are the step's matrix products, one after the other, with the same weights. The parts are self times from
torch's profiler, which adds overhead where operators are small. The column Python is the rest of the step, measured
without the profiler. In a server, `py-spy record --threads --pid` of the model's process shows the Python part.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm
from transformers.utils import logging

from inflight import EngineConfig
from inflight.config import QUANTIZATIONS
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.forward import EagerForward, ForwardPass
from inflight.model.loading.loader import LoadedModel, load_model
from load_tests.bench.ceilings import Ceilings, ceilings
from load_tests.bench.engine_step import (
    CONTEXT,
    SETTINGS,
    SPREAD,
    Step,
    Work,
    alternating,
    products_of,
    sampled_works,
    step_of,
    works,
)
from load_tests.bench.floor import floor_milliseconds
from load_tests.bench.instruction_sets import instruction_sets_table
from load_tests.bench.kernels import kernels_table
from load_tests.model_options import add_model_options, model_folder, model_name
from load_tests.option_types import whole
from scripts.launch.environment import environment
from scripts.launch.errors import LauncherError

PROFILED = 5
LINEAR = (
    *("inflight::linear", "inflight::linear_silu_mul", "inflight::linear_int8", "inflight::linear_int8_silu_mul"),
    *("inflight::linear_int4", "inflight::linear_int4_silu_mul", "aten::addmm", "aten::mm"),
)
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


def parts_table(model: LoadedModel, chosen: Sequence[Work], limits: Ceilings) -> Iterator[str]:
    """Lines of the table of parts."""
    heads = ("Step", "ms", "Tokens/s", "Matrix products", "Attention", "Other operators", "Python")
    yield f"| {' | '.join(heads)} | Products alone | Floor | Step to floor |"
    yield f"|---|{'---:|' * 9}"
    for work in tqdm(chosen, desc="where the time goes"):
        step = step_of(model, model.forward, work)
        whole, products = alternating([step, products_of(model, work)])
        linear, attention, other = parts_of(step)
        python = max(0.0, whole - linear - attention - other)
        floor = floor_milliseconds(model, work, limits)
        yield (
            f"| {work.name} | {whole:.1f} | {1000 * work.num_tokens / whole:.0f} | {linear:.1f} | {attention:.1f} "
            f"| {other:.1f} | {python:.1f} | {products:.1f} | {floor:.1f} | {whole / floor:.2f} |"
        )


def shares_of_products(config: EngineConfig) -> dict[str, float]:
    """Ratio of the products alone to each step. Empty if the CPU kernels are not in use."""
    model = load_model(config)
    if not isinstance(model.forward, TracedForward):
        return {}
    shares = {}
    for work in works():
        whole, products = alternating([step_of(model, model.forward, work), products_of(model, work)])
        shares[work.name] = products / whole
    return shares


def gains_table(model: LoadedModel, portable: LoadedModel, chosen: Sequence[Work]) -> Iterator[str]:
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
    for work in tqdm(chosen, desc="what each way brings"):
        times = alternating([step_of(which, forward, work) for which, forward in ways.values()])
        gains = ", ".join(f"{before / after:.2f}" for before, after in itertools.pairwise(times))
        yield f"| {work.name} | {' | '.join(f'{each:.1f}' for each in times)} | {gains} |"


def measure(config: EngineConfig, tables: Sequence[str], context: int) -> Iterator[str]:
    """Lines of the chosen tables. Raises LauncherError if the CPU kernels are not in use or the context is too long."""
    model = load_model(config)
    if not isinstance(model.forward, TracedForward):
        raise LauncherError("the CPU kernels are not in use on this machine; the log says why")
    if context >= model.max_model_len:
        raise LauncherError(f"--context is {context}; it must be less than the model's {model.max_model_len}")
    chosen = works(context)
    if "steps" in tables:
        limits = ceilings()
        yield from parts_table(model, [*chosen, *sampled_works(context)], limits)
        yield f"\n{limits}\n"
    if "optimisations" in tables:
        portable = load_model(replace(config, enable_kernels=False, quantization=None))
        yield from [*gains_table(model, portable, chosen), ""]
        del portable
    if "kernels" in tables:
        yield from [*kernels_table(model), ""]
    del model
    if "instruction_sets" in tables:
        yield from [*instruction_sets_table(config, chosen), ""]


TABLES = ("steps", "optimisations", "kernels", "instruction_sets")


def _tables(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in TABLES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(TABLES)}")
    return names


def main() -> int:
    """Measure and print the tables. The exit status is 1, with a line that says why, if that is not possible."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add = parser.add_argument
    add("--quantization", choices=QUANTIZATIONS, help="of the weights; torch's own operators stay in bfloat16")
    add(
        "--context",
        type=whole(SPREAD + 1),
        default=CONTEXT,
        metavar="TOKENS",
        help=f"cached tokens of the decodes at most; the fewest are {SPREAD} less (%(default)s)",
    )
    add("--tables", type=_tables, default=TABLES, metavar="NAME,...", help=f"by default all: {','.join(TABLES)}")
    options = parser.parse_args()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        config = EngineConfig(str(model_folder(options)), **SETTINGS, quantization=options.quantization)
        lines = list(measure(config, options.tables, options.context))
    except (LauncherError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    about = environment(options.quantization or "bfloat16", "cpu")
    about["model"] = model_name(options)
    print("\n".join(lines))
    print("; ".join(f"{name}: {value}" for name, value in about.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
