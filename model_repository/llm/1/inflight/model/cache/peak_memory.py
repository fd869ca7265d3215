"""Measures how much memory of a GPU some work needs."""

from collections.abc import Callable

import torch


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Run `work` and return by how many bytes the allocated memory of a GPU rose at most. On a CPU, return 0."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before
