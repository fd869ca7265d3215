"""What else kept the processors busy while something was measured."""

import os
import time

import psutil


class OtherLoad:
    """How much of the processors went to processes other than this one and all that it started.

    Where it is more than a little, or not the same for all, the systems met different machines and their ratios say
    nothing: two threads that meet at every layer wait for each other when a third wants their processors.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._before = _all_seconds() - own_seconds()

    def share(self) -> float:
        """Return the share since this was made; servers that this process started are to be still there."""
        capacity = (time.perf_counter() - self._started) * (os.cpu_count() or 1)
        return max(0.0, (_all_seconds() - own_seconds() - self._before) / capacity)


def own_seconds() -> float:
    """Processor time of this process and its descendants: those that run and those that were waited for."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            # It has ended just now, and counts with its parent.
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _all_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
