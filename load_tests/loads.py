"""The loads that the benchmarks' tables have rows for: workload files by name."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from load_tests.pages import tokens_of_pages
from load_tests.workload import WORKLOADS, Workload, WorkloadError, read_workload
from scripts.launch.errors import LauncherError

GREEDY = "greedy"
LOADS = (GREEDY, "temperature", "top_p", "short", "long", "shared_prefix", "chat_turns")
"""The loads of `all`, in the order of the tables."""


def read_loads(text: str) -> list[Workload]:
    """Parse the value of `--loads`: names of workload files, or paths, with commas in between; or `all`.

    Raises argparse.ArgumentTypeError if one is not there or not valid, or if two have the same name.
    """
    names = LOADS if text == "all" else text.split(",")
    try:
        loads = [read_workload(_path(name)) for name in names]
    except (OSError, WorkloadError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    for name, times in Counter(load.name for load in loads).items():
        if times > 1:
            raise argparse.ArgumentTypeError(f"{times} loads have the name {name!r}; each must have a name of its own")
    return loads


def write_prompts_in_text(loads: Sequence[Workload], model: Path) -> None:
    """Cut the prompts of these loads from the project's pages instead of drawing random ids.

    Samplers take longer, the less certain the model is. After text, half of the default model's distributions have less
    than 500 tokens with 95 % of the probability; after random ids they have more than 6,000.

    Raises LauncherError if the model has no tokenizer.
    """
    # Imported here so that `--help` needs no torch.
    from transformers import AutoTokenizer

    try:
        tokens = tokens_of_pages(AutoTokenizer.from_pretrained(model))
    except (OSError, ValueError) as error:
        raise LauncherError(f"{model} has no tokenizer to make prompts with: {error}") from error
    for load in loads:
        load.text = tokens


def _path(name: str) -> Path:
    path = Path(name)
    if path.suffix:
        return path
    if not (known := WORKLOADS / f"{name}.yaml").is_file():
        names = ", ".join(sorted(file.stem for file in WORKLOADS.glob("*.yaml")))
        raise WorkloadError(f"{name!r} is neither all nor one of {names}, nor the path of a workload file")
    return known
