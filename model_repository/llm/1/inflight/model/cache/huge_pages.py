"""Memory in huge pages, for what every step reads: small ones cost it time to translate addresses."""

import mmap

import torch


def zeros_huge_pages(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU they take memory only when first written, in huge pages where the system grants them."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    count = torch.Size(size).numel()
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(size)
