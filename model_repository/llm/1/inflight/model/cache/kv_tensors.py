"""The tensors of the KV cache, one pair per layer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inflight.model.cache.huge_pages import zeros_huge_pages

# Small enough to check the clock often. Two threads get two huge pages each.
_BYTES_AT_ONCE = 8 << 20


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one layer's cache: the number of KV heads, and the elements of a key and of a value per head."""

    num_kv_heads: int
    key_width: int
    value_width: int

    @property
    def elements_per_token(self) -> int:
        return self.num_kv_heads * (self.key_width + self.value_width)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys [blocks, block size, KV heads, key width] and values [blocks, block size, KV heads, value width].

    Some attention backends use another layout inside a block. These write the cache themselves.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def clear(self, blocks: torch.Tensor) -> None:
        """Fill the given blocks with zeros."""
        self.keys.index_fill_(0, blocks, 0)
        self.values.index_fill_(0, blocks, 0)

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the keys and values [tokens, KV heads, width] of a step at `slots` [tokens]."""
        self.keys.flatten(0, 1).index_copy_(0, slots, keys)
        self.values.flatten(0, 1).index_copy_(0, slots, values)

    def copy_blocks(self, blocks: torch.Tensor, target: "LayerCache", target_blocks: torch.Tensor) -> None:
        """Copy `blocks` [N] of this cache to `target_blocks` [N] of `target`, which may be on another device."""
        for mine, other in ((self.keys, target.keys), (self.values, target.values)):
            # Indexing with `[]` takes one and a half times as long as `index_select`.
            found = mine.index_select(0, blocks.to(mine.device))
            other.index_copy_(0, target_blocks.to(other.device), found.to(other.device))


def bytes_per_token(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """The cache memory of one token in all layers."""
    return sum(shape.elements_per_token for shape in shapes) * dtype.itemsize


def allocate(
    shapes: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """Allocate a cache of `num_blocks` blocks per layer, all zero. On the CPU, pages are faulted in later.

    `prefault` does this, else the first write to each page.
    """

    def pages(heads: int, width: int) -> torch.Tensor:
        return zeros_huge_pages((num_blocks, block_size, heads, width), dtype, device)

    return [LayerCache(pages(s.num_kv_heads, s.key_width), pages(s.num_kv_heads, s.value_width)) for s in shapes]


def prefault(caches: Sequence[LayerCache], seconds: float) -> float:
    """Fault in the pages of new caches, block by block, for at most about `seconds`.

    Without this, each page is faulted in on its first write, which makes steps a sixth slower in a virtual machine.
    Returns the fraction that is now resident, from 0.0 to 1.0.
    """
    until = time.monotonic() + seconds
    tensors = [tensor for cache in caches for tensor in (cache.keys, cache.values)]
    if not tensors:
        return 1.0
    num_blocks = len(tensors[0])
    step = max(1, _BYTES_AT_ONCE // tensors[0][0].nbytes)
    for start in range(0, num_blocks, step):
        for tensor in tensors:
            tensor[start : start + step].zero_()
        if time.monotonic() > until:
            return min(1.0, (start + step) / num_blocks)
    return 1.0
