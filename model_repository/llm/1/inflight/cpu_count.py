"""Counts the processors that this process may use."""

import math
import os
from pathlib import Path

from inflight.cgroup import ControlGroup, control_groups


def allowed_cpus() -> int:
    """Return the number of logical processors in the affinity mask of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cpus(root: Path = Path("/")) -> int:
    """Return how many threads can compute at once: the allowed processors, or fewer under a quota.

    A container with a quota sees all processors of its host. With a thread on each, it would use up its share of every
    period at once and then stand still. A quota of 1.5 processors counts as 2.

    `root` is the root of the file system; another folder in tests.
    """
    quotas = [_quota(group) for group in control_groups("cpu", root)]
    return max(1, min([allowed_cpus(), *(math.ceil(quota) for quota in quotas if quota is not None)]))


def _quota(group: ControlGroup) -> float | None:
    """Return the processor time per time of a control group. None if it is not limited."""
    if group.version == 2:
        words = group.words("cpu.max")
    else:
        words = [*group.words("cpu.cfs_quota_us"), *group.words("cpu.cfs_period_us")]
    return int(words[0]) / int(words[1]) if words and words[0] not in ("max", "-1") else None
