"""Measures the processor time that other processes used during a measurement."""

import os
import time

import psutil


class OtherLoad:
    """The fraction of the processors that went to other processes than this one and its descendants.

    If it is more than a little, or differs between the compared systems, they had different machines, and their ratios
    mean nothing: two threads that synchronise at every layer wait for each other when a third one uses their
    processors.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._before = _all_seconds() - own_seconds()

    def share(self) -> float:
        """Return the fraction since this object was created. Servers that this process started must still be
        running."""
        capacity = (time.perf_counter() - self._started) * (os.cpu_count() or 1)
        return max(0.0, (_all_seconds() - own_seconds() - self._before) / capacity)


def own_seconds() -> float:
    """Processor time of this process and its descendants, both the running ones and those that ended and were waited
    for."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            # The process has just ended. Its time is included in its parent's.
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _all_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
