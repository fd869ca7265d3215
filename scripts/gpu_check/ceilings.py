"""Measures the limits of this device."""

import time
from collections.abc import Callable

import torch

from scripts.gpu_check.check_result import CheckResult

_REPEATS = 20


def seconds(work: Callable[[], object], device: str) -> float:
    """The shortest time of several runs."""
    shortest = float("inf")
    for _ in range(_REPEATS):
        finish(device)
        started = time.perf_counter()
        work()
        finish(device)
        shortest = min(shortest, time.perf_counter() - started)
    return shortest


def finish(device: str) -> None:
    """Wait until the device has finished its work."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def bandwidth(device: str, size: int) -> float:
    """Bytes per second that a copy of `size` bytes within the device reads and writes."""
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds(lambda: target.copy_(source), device)


def products(device: str, size: int) -> float:
    """Operations per second of a product of two square bfloat16 matrices."""
    left, right = torch.randn(2, size, size, device=device).bfloat16()
    return 2 * float(size) ** 3 / seconds(lambda: left @ right, device)


def results(device: str, *, small: bool) -> list[CheckResult]:
    """Both limits. The first is the bandwidth in bytes per second."""
    return [
        CheckResult("memory bandwidth of a copy", bandwidth(device, 2**24 if small else 2**32), "bytes/s"),
        CheckResult("products in bfloat16", products(device, 256 if small else 8192), "operations/s"),
    ]
