"""The attention backend for GPUs: it calls the kernels in the Triton language."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from inflight.model.attention.interface import AttentionCall
from inflight.model.attention.tiles import make_tiles
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.cuda.attention_kernel import attend
from inflight.model.cuda.tiling import prompt_tile_tokens
from inflight.model.ragged_batch import RaggedBatch

# A part has at least this many keys; with fewer, another program is not worth its cost.
_PART_KEYS = 256
_MAX_PARTS = 32


class PromptTiles:
    """The tiles of the rows of several tokens. How many tokens a tile has depends on the layer."""

    def __init__(self, batch: RaggedBatch | None = None) -> None:
        """Without a batch there are no such rows."""
        self._batch = batch
        self._made: dict[int, torch.Tensor] = {}

    def of(self, tokens: int) -> torch.Tensor | None:
        """Return tiles [tiles, 4] int64 of at most `tokens` tokens, see `tiles.make_tiles`; None if there are none."""
        batch = self._batch
        if batch is None or batch.num_single == batch.num_rows:
            return None
        if tokens not in self._made:
            self._made[tokens] = _tiles(batch, range(batch.num_single, batch.num_rows), tokens)
        return self._made[tokens]


class BatchTensors(NamedTuple):
    """The input of the kernels for a batch of R rows and T tokens. Rows of one token come first."""

    slots: torch.Tensor
    """[T] int64."""
    block_tables: torch.Tensor
    """[R, blocks] int64."""
    single: torch.Tensor
    """[rows of one token, 4] int64, the tiles of these rows, see `tiles.make_tiles`."""
    parts: int
    """The number of parts into which the keys are cut in rows of one token."""
    prompts: PromptTiles
    """The tiles of the other rows."""

    @classmethod
    def of(cls, batch: RaggedBatch) -> "BatchTensors":
        """Make the tensors of a batch."""
        singles = batch.num_single
        parts = parts_for(max(batch.context_lens[:singles], default=0), singles)
        single = _tiles(batch, range(singles), 1)
        return cls(batch.slots, batch.block_tables, single, parts, PromptTiles(batch))


def _tiles(batch: RaggedBatch, rows: range, tokens: int) -> torch.Tensor:
    tiles = make_tiles(batch.query_starts, batch.context_lens, rows, tokens)
    return torch.from_numpy(tiles).to(batch.slots.device)


def parts_for(longest: int, rows: int) -> int:
    """The number of parts for contexts of up to `longest` tokens. More rows need fewer parts."""
    return max(1, min(longest // _PART_KEYS, _MAX_PARTS, 512 // max(rows, 1)))


class KernelAttention:
    """AttentionImpl for one forward pass. The model must call `attend` once per layer, in order.

    Args:
        caches: One per attention call of a forward pass, in order.
        windows: The sliding window of each attention call; None if it has none.
    """

    def __init__(self, batch: BatchTensors, caches: Sequence[LayerCache], windows: Sequence[int | None]) -> None:
        self._batch = batch
        self._layers = iter(zip(caches, windows, strict=True))

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the call's keys and values into the layer's cache, then attend over the cached tokens of each row."""
        batch = self._batch
        cache, window = next(self._layers)
        cache.write(batch.slots, call.key[0].transpose(0, 1), call.value[0].transpose(0, 1))
        query = call.query[0].transpose(0, 1)
        output = query.new_empty(*query.shape[:2], call.value.shape[3])
        tokens = prompt_tile_tokens(query.dtype, call.query.shape[1] // call.key.shape[1])
        prompts = batch.prompts.of(tokens)
        for tiles, tile_tokens, parts in ((batch.single, 1, batch.parts), (prompts, tokens, 1)):
            if tiles is not None and len(tiles):
                attend(
                    query,
                    cache.keys,
                    cache.values,
                    output,
                    batch.block_tables,
                    tiles,
                    tile_tokens=tile_tokens,
                    parts=parts,
                    scaling=call.scaling,
                    window=window,
                    softcap=call.softcap,
                    sinks=call.sinks,
                )
        return output.unsqueeze(0)
