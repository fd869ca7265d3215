"""Copies blocks of the KV cache, within it, to host memory and back."""

import time
from collections.abc import Sequence

import torch

from inflight.model.cache.huge_pages import zeros_huge_pages
from inflight.model.cache.kv_tensors import LayerCache, prefault

_TIMED_BLOCKS = 8


class HostCache:
    """Host memory for the blocks of a `HostPool`."""

    def __init__(self, caches: Sequence[LayerCache], num_blocks: int) -> None:
        """Allocate host memory for `num_blocks` blocks of every layer, in the layout of `caches`."""
        self.num_blocks = num_blocks
        self._caches = caches
        self._host = [LayerCache(_like(c.keys, num_blocks), _like(c.values, num_blocks)) for c in caches if num_blocks]

    def prefault(self, seconds: float) -> float:
        """See `kv_tensors.prefault`. A `HostPool` takes the blocks in the same order."""
        return prefault(self._host, seconds)

    def copy(
        self,
        out: Sequence[tuple[int, int]],
        forked: Sequence[tuple[int, int]],
        into: Sequence[tuple[int, int]],
    ) -> None:
        """Copy blocks to the host, then others within the cache, then others back.

        Args:
            out: Pairs (block, host block).
            forked: Pairs (block, block).
            into: Pairs (host block, block).
        """
        for pairs, sources, targets in (
            (out, self._caches, self._host),
            (forked, self._caches, self._caches),
            (into, self._host, self._caches),
        ):
            if pairs:
                source_blocks, target_blocks = torch.tensor(pairs, dtype=torch.int64).T
                for source, target in zip(sources, targets, strict=True):
                    source.copy_blocks(source_blocks, target, target_blocks)

    def seconds_per_block(self) -> float:
        """Measure how long it takes to copy one block. Call this before any block is in use."""
        if not (self._caches and self.num_blocks):
            return 0.0
        count = min(_TIMED_BLOCKS, self.num_blocks, self._caches[0].keys.shape[0])
        pairs = [(i, i) for i in range(count)]
        self.copy(pairs, (), pairs)  # The first copy also faults the memory in, so it is not timed.
        started = time.perf_counter()
        self.copy(pairs, (), pairs)
        return (time.perf_counter() - started) / (2 * count)


def _like(pages: torch.Tensor, num_blocks: int) -> torch.Tensor:
    return zeros_huge_pages((num_blocks, *pages.shape[1:]), pages.dtype, torch.device("cpu"))
