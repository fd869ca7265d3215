"""Attention over block tables by the kernels in the Triton language."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from inflight.model.attention.interface import AttentionCall
from inflight.model.attention.tiles import make_tiles
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.cuda.attention_kernel import attend
from inflight.model.ragged_batch import RaggedBatch

_TILE_TOKENS = 16
# So many keys of a row are worth a program of their own.
_PART_KEYS = 256
_MAX_PARTS = 32


class BatchTensors(NamedTuple):
    """What the kernels need to know of a batch of R rows and T tokens; rows of one token come first."""

    slots: torch.Tensor
    """[T] int64."""
    block_tables: torch.Tensor
    """[R, most blocks] int64."""
    single: torch.Tensor
    """[rows of one token, 4] int64, see `tiles.make_tiles`."""
    prompts: torch.Tensor
    """[tiles of other rows, 4] int64."""
    parts: int
    """Into how many parts the keys of rows of one token are cut."""

    @classmethod
    def of(cls, batch: RaggedBatch) -> "BatchTensors":
        """Take them from a batch."""
        device, singles = batch.slots.device, batch.num_single
        single, prompts = (
            torch.from_numpy(make_tiles(batch.query_starts, batch.context_lens, rows, tokens)).to(device)
            for rows, tokens in ((range(singles), 1), (range(singles, batch.num_rows), _TILE_TOKENS))
        )
        longest = max(batch.context_lens[:singles], default=0)
        return cls(batch.slots, batch.block_tables, single, prompts, parts_for(longest, singles))


def parts_for(longest: int, rows: int) -> int:
    """Into how many parts to cut contexts of up to `longest` tokens: the fewer the more rows there are."""
    wanted = min(longest // _PART_KEYS, _MAX_PARTS, 512 // max(rows, 1))
    # Each number is another compilation of the kernel.
    return 1 << max(0, wanted.bit_length() - 1)


class KernelAttention:
    """AttentionImpl for one forward pass: layer by layer, in the order in which the model calls.

    Args:
        caches: one per attention call of a forward pass, in order.
        windows: the sliding window of each, None for none.
    """

    def __init__(self, batch: BatchTensors, caches: Sequence[LayerCache], windows: Sequence[int | None]) -> None:
        self._batch = batch
        self._layers = iter(zip(caches, windows, strict=True))

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the call's keys and values into its layer's cache, then attend over what each row sees of it."""
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
