"""Processes that other processes have started."""

import psutil

from serving.process import Process


def children(parent: int) -> list[Process]:
    """The running processes that a process has started."""
    found = psutil.Process(parent).children()
    return [Process(child.pid) for child in found if child.status() != psutil.STATUS_ZOMBIE]
