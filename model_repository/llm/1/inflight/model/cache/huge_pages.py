"""Memory in huge pages for weights and KV cache: every step reads them, and small pages cost it TLB misses."""

import mmap

import torch


def zeros_huge_pages(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate zeros. On the CPU, memory is taken on the first write, in huge pages if the system grants them."""
    count = torch.Size(size).numel()
    if device.type != "cpu" or not count:
        return torch.zeros(size, dtype=dtype, device=device)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(size)
