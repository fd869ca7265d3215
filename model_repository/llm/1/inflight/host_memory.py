"""Measures the host memory that this process may still take."""

import os
import re
from pathlib import Path

from inflight.cgroup import ControlGroup, control_groups

# Version 1 has these numbers for a group alone, too; `total_` includes the groups below it.
_CACHED = {1: ("total_active_file", "total_inactive_file"), 2: ("active_file", "inactive_file")}
_MAPPED = {1: "total_mapped_file", 2: "file_mapped"}
# Above the second one, which is systemd's MemoryHigh, the kernel ends nobody but slows everybody down.
_LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}
_MOST_MAPPED = re.compile(r"^Max address space +(\d+)", re.MULTILINE)


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that are free on the host and within the limits of the container and of this process.

    Linux drops cached pages of files when memory is needed, so they count as free, except in a container those that
    are mapped: they may be the model's weights. `root` is the root of the file system; another folder in tests.
    """
    left = [_left_to_map(root), *(_left_in(group) for group in control_groups("memory", root))]
    return min([_available(root), *(size for size in left if size is not None)])


def _available(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _left_to_map(root: Path) -> int | None:
    """Return the bytes that this process may still map (`ulimit -v`). None if it has no limit."""
    try:
        limit = _MOST_MAPPED.search((root / "proc/self/limits").read_text())
    except FileNotFoundError:
        return None
    if limit is None:
        return None
    mapped = int((root / "proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return max(0, int(limit[1]) - mapped)


def _left_in(group: ControlGroup) -> int | None:
    """Return the bytes that a control group leaves. None if it has no limit."""
    limits = [int(word) for name in _LIMITS[group.version] for word in group.words(name) if word != "max"]
    if not limits:
        return None
    (usage,) = group.words(_USAGE[group.version])
    words = group.words("memory.stat")
    pages = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    cached = sum(pages[name] for name in _CACHED[group.version]) - pages[_MAPPED[group.version]]
    return max(0, min(limits) - int(usage) + max(0, cached))
