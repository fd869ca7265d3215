"""The loads that the benchmarks' tables have rows for: workload files by name."""

import argparse
from pathlib import Path

from load_tests.workload import WORKLOADS, Workload, WorkloadError, read_workload

GREEDY = "greedy"
LOADS = (GREEDY, "temperature", "top_p", "short", "long", "shared_prefix", "chat_turns")
"""The loads of `all`, in the order of the tables."""


def read_loads(text: str) -> list[Workload]:
    """Parse the value of `--loads`: names of workload files, or paths, with commas in between; or `all`.

    Raises argparse.ArgumentTypeError if one is not there or not valid.
    """
    names = LOADS if text == "all" else text.split(",")
    try:
        return [read_workload(_path(name)) for name in names]
    except (OSError, WorkloadError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _path(name: str) -> Path:
    path = Path(name)
    if path.suffix:
        return path
    if not (known := WORKLOADS / f"{name}.yaml").is_file():
        names = ", ".join(sorted(file.stem for file in WORKLOADS.glob("*.yaml")))
        raise WorkloadError(f"{name!r} is neither all nor one of {names}, nor the path of a workload file")
    return known
