"""The machine and the versions that measurements depend on."""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inflight.model.cpu.instruction_sets import instruction_sets
from scripts.launch.wheels import pinned


def environment(dtype: str, device: str) -> dict[str, Any]:
    """Return the machine and versions that measurements depend on."""
    return {
        "versions": f"Python {platform.python_version()}, torch {version('torch')}, "
        f"transformers {version('transformers')}, Triton of {pinned('triton-runtime').replace('==', ' ')}",
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "dtype": f"{dtype} on {device}",
    }


def _cpu_name() -> str:
    """The processor's name and its instructions for bfloat16, because some names stand for several generations."""
    name = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{name[1] if name else platform.machine()} with {next(iter(instruction_sets()), 'no AVX2')}"
