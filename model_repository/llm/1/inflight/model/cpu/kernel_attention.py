"""The attention backend for CPUs: it calls the C++ kernel."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from inflight.model.attention.interface import AttentionCall
from inflight.model.attention.tiles import make_image_tiles, make_tiles
from inflight.model.cache.huge_pages import zeros_huge_pages
from inflight.model.cache.kv_tensors import LayerCache, LayerShape
from inflight.model.ragged_batch import RaggedBatch

_LANES = 16
_TILE_TOKENS = 16


def takes(shapes: Sequence[LayerShape], block_size: int) -> bool:
    """Whether the kernel supports these layer shapes and this block size."""
    widths_fit = all(shape.key_width % 2 == 0 and shape.value_width % _LANES == 0 for shape in shapes)
    return widths_fit and block_size % _LANES == 0


def allocate(
    shapes: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """Allocate a cache in the kernel's layout: [blocks, KV heads, block size * width], see cpp/attention.cpp.

    Within a block, the values of a head follow its keys, as memory reads one long piece faster than two short ones.
    """

    def layer(shape: LayerShape) -> LayerCache:
        keys, values = block_size * shape.key_width, block_size * shape.value_width
        pages = zeros_huge_pages((num_blocks, shape.num_kv_heads, keys + values), dtype, device)
        return LayerCache(pages[..., :keys], pages[..., keys:])

    return [layer(shape) for shape in shapes]


class BatchTensors(NamedTuple):
    """The input of the kernel for a batch of R rows and T tokens."""

    slots: torch.Tensor
    """[T] int64."""
    partial_blocks: torch.Tensor
    """[blocks] int64."""
    block_tables: torch.Tensor
    """[R, blocks] int64."""
    tiles: torch.Tensor
    """[tiles, 4] int64, see `tiles.make_tiles`."""

    @classmethod
    def of(cls, batch: RaggedBatch) -> "BatchTensors":
        """Make the tensors of a batch."""
        tiles = make_tiles(batch.query_starts, batch.context_lens, range(batch.num_rows), _TILE_TOKENS)
        return cls(batch.slots, batch.partial_blocks, batch.block_tables, torch.from_numpy(tiles))


def image_tiles(batch: RaggedBatch) -> torch.Tensor:
    """Return tiles [tiles, 5] int64 of layers in which the tokens of the batch's images see all of the image."""
    assert batch.images is not None
    assert batch.images.sees_to is not None
    sees_to = batch.images.sees_to
    return torch.from_numpy(make_image_tiles(batch.query_starts, batch.context_lens, sees_to, _TILE_TOKENS))


class KernelAttention:
    """AttentionImpl for one forward pass. The model must call `attend` once per layer, in order.

    Args:
        caches: One per attention call of a forward pass, in order.
        windows: The sliding window of each attention call; None if it has none.
        tiles: Those of each attention call; None if all have those of the batch.
    """

    def __init__(
        self,
        batch: BatchTensors,
        caches: Sequence[LayerCache],
        windows: Sequence[int | None],
        tiles: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self._batch = batch
        self._layers = iter(zip(caches, windows, tiles or [batch.tiles] * len(caches), strict=True))

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the call's keys and values into the layer's cache, then attend over the cached tokens of each row."""
        cache, window, tiles = next(self._layers)
        output: torch.Tensor = torch.ops.inflight.paged_attention(
            call.query,
            call.key,
            call.value,
            cache.keys,
            cache.values,
            self._batch.slots,
            self._batch.partial_blocks,
            self._batch.block_tables,
            tiles,
            call.scaling,
            window or 0,
            call.softcap or 0.0,
            None if call.sinks is None else call.sinks.float(),
        )
        return output
