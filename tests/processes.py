"""Processes that other processes have started."""

from pathlib import Path

import psutil

from serving.process import Process


def children(parent: int) -> list[Process]:
    """The running processes that a process has started."""
    found = psutil.Process(parent).children()
    return [Process(child.pid) for child in found if child.status() != psutil.STATUS_ZOMBIE]


def is_model(process: Process, model: str) -> bool:
    """Whether this is a process that runs the model. Triton gives it the path of the model's folder."""
    return f"/{model}/1/model.py" in Path(f"/proc/{process.pid}/cmdline").read_text()
