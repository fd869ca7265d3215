"""The attention backend for GPUs: it calls the kernels in the Triton language."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from inflight.model.attention.interface import AttentionCall
from inflight.model.attention.tiles import make_tiles
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.cuda.attention_kernel import attend
from inflight.model.ragged_batch import RaggedBatch

_TILE_TOKENS = 16
# A part has at least this many keys; with fewer, another program is not worth its cost.
_PART_KEYS = 256
_MAX_PARTS = 32


class BatchTensors(NamedTuple):
    """The input of the kernels for a batch of R rows and T tokens. Rows of one token come first."""

    slots: torch.Tensor
    """[T] int64."""
    block_tables: torch.Tensor
    """[R, blocks] int64."""
    single: torch.Tensor
    """[rows of one token, 4] int64, the tiles of these rows, see `tiles.make_tiles`."""
    prompts: torch.Tensor
    """[tiles, 4] int64, the tiles of the other rows."""
    parts: int
    """The number of parts into which the keys are cut in rows of one token."""

    @classmethod
    def of(cls, batch: RaggedBatch) -> "BatchTensors":
        """Make the tensors of a batch."""
        device, singles = batch.slots.device, batch.num_single
        single, prompts = (
            torch.from_numpy(make_tiles(batch.query_starts, batch.context_lens, rows, tokens)).to(device)
            for rows, tokens in ((range(singles), 1), (range(singles, batch.num_rows), _TILE_TOKENS))
        )
        longest = max(batch.context_lens[:singles], default=0)
        return cls(batch.slots, batch.block_tables, single, prompts, parts_for(longest, singles))


def parts_for(longest: int, rows: int) -> int:
    """The number of parts for contexts of up to `longest` tokens, a power of two. More rows need fewer parts."""
    wanted = min(longest // _PART_KEYS, _MAX_PARTS, 512 // max(rows, 1))
    # The kernel is compiled once for each number, so there should be few of them.
    return 1 << max(0, wanted.bit_length() - 1)


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
        for tiles, tokens, parts in ((batch.single, 1, batch.parts), (batch.prompts, _TILE_TOKENS, 1)):
            if len(tiles):
                attend(
                    query,
                    cache.keys,
                    cache.values,
                    output,
                    batch.block_tables,
                    tiles,
                    tile_tokens=tokens,
                    parts=parts,
                    scaling=call.scaling,
                    window=window,
                    softcap=call.softcap,
                    sinks=call.sinks,
                )
        return output.unsqueeze(0)
