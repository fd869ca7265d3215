"""The steps of `make bench-step`, with the kernels for each instruction set of this CPU.

A process can load only one library of kernels. So each instruction set is measured in its own process, and the
processes alternate.
"""

import contextlib
import itertools
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tqdm import tqdm

from inflight import EngineConfig
from inflight.model.cpu.instruction_sets import INSTRUCTION_SETS, instruction_sets
from load_tests.bench.engine_step import Step, Work, alternating_medians, seconds_of, step_of

_steps: list[Step] = []


def instruction_sets_table(config: EngineConfig, works: Sequence[Work]) -> Iterator[str]:
    """Lines of the table of instruction sets. None if this CPU has only one."""
    names = instruction_sets()[::-1]
    if len(names) < 2:
        return
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process(name, config, works)) for name in names]
        yield f"| Step, ms | {' | '.join(names)} | Gain of each |"
        yield f"|---|{'---:|' * len(names)}---:|"
        for number, work in enumerate(tqdm(works, desc="what each instruction set brings")):
            times = alternating_medians([partial(_seconds, process, number) for process in processes])
            gains = ", ".join(f"{before / after:.2f}" for before, after in itertools.pairwise(times))
            yield f"| {work.name} | {' | '.join(f'{each:.1f}' for each in times)} | {gains} |"


def _process(name: str, config: EngineConfig, works: Sequence[Work]) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=spawn, initializer=_load, initargs=(name, config, works))


def _load(newest: str, config: EngineConfig, works: Sequence[Work]) -> None:
    from inflight.model.loading.loader import load_model

    as_if_newest(newest)
    model = load_model(config)
    _steps.extend(step_of(model, model.forward, work) for work in works)


def as_if_newest(newest: str) -> None:
    """Make this process treat `newest` as the CPU's newest instruction set."""
    for name in itertools.takewhile(lambda name: name != newest, list(INSTRUCTION_SETS)):
        del INSTRUCTION_SETS[name]


def _seconds(process: ProcessPoolExecutor, number: int) -> float:
    return process.submit(_seconds_here, number).result()


def _seconds_here(number: int) -> float:
    return seconds_of(_steps[number])
