"""Attention over block tables in plain torch: correct for every model and device, and the reference for the kernels.

Each group of rows is one call of scaled_dot_product_attention. Rows of one query token (decodes) with similar context
lengths form a group. Each row of several query tokens (a prompt chunk) is a group of its own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from inflight.model.attention.interface import AttentionCall
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.ragged_batch import RaggedBatch
from inflight.prompt_images import Ints


class TorchAttention:
    """AttentionImpl for one forward pass over `batch`. The model must call `attend` once per layer, in order.

    Args:
        caches: One per attention call of a forward pass, in order.
        windows: The sliding window of each attention call; None if it has none.
        ahead: Whether the tokens of an image see all of it in that call; empty if in none.
    """

    def __init__(
        self,
        batch: RaggedBatch,
        caches: Sequence[LayerCache],
        windows: Sequence[int | None],
        ahead: Sequence[bool] = (),
    ) -> None:
        self._slots, self._partial_blocks = batch.slots, batch.partial_blocks
        masks = list(zip(windows, ahead or [False] * len(windows), strict=True))
        self._layers = iter(zip(caches, masks, strict=True))
        block_size, dtype = caches[0].keys.shape[1], caches[0].keys.dtype
        self._groups = {mask: list(_groups(batch, block_size, *mask, dtype)) for mask in set(masks)}

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the call's keys and values into the layer's cache, then attend over the cached tokens of each row."""
        cache, mask = next(self._layers)
        if len(self._partial_blocks):
            # A masked slot has weight 0, but 0 times NaN is NaN: old data must not spoil the result of this request.
            cache.clear(self._partial_blocks)
        cache.write(self._slots, call.key[0].transpose(0, 1), call.value[0].transpose(0, 1))
        query = call.query[0].transpose(0, 1)
        parts = [_attend_group(query[g.first : g.last], cache, g, call) for g in self._groups[mask]]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows whose attention is computed in one call: B rows of N tokens, where B or N is 1."""

    first: int
    last: int
    """The group has the B * N tokens from `first` up to `last` of the flat row."""
    blocks: torch.Tensor
    """[B, blocks], starting with the first block that any token of the group sees."""
    num_keys: int
    """K, the number of gathered keys in use."""
    bias: torch.Tensor | None
    """[B, 1, N, K], 0 where a query sees a key, -inf elsewhere; None for plain causal attention."""


def _groups(
    batch: RaggedBatch, block_size: int, window: int | None, ahead: bool, dtype: torch.dtype
) -> Iterator[_Group]:
    """Cut a batch into groups. Rows of one token are ordered by context length, so neighbours have similar lengths."""
    sees_to = None
    if ahead and batch.images is not None and batch.images.sees_to is not None:
        sees_to = batch.images.sees_to
    row = 0
    while row < len(batch.context_lens):
        end = row + 1
        if row < batch.num_single:
            # This pads no row to more than twice its own context.
            longest = 2 * max(batch.context_lens[row], block_size)
            while end < batch.num_single and batch.context_lens[end] <= longest:
                end += 1
        seen = None if sees_to is None else sees_to[batch.query_starts[row] : batch.query_starts[end]]
        yield _group(batch, row, end, block_size, window, seen if seen is not None and seen.any() else None, dtype)
        row = end


def _group(
    batch: RaggedBatch,
    row: int,
    end: int,
    block_size: int,
    window: int | None,
    sees_to: Ints | None,
    dtype: torch.dtype,
) -> _Group:
    """`sees_to` [B * N] is that of `BatchImages`; None if no token of the group sees ahead."""
    first, last = batch.query_starts[row], batch.query_starts[end]
    lengths = batch.context_lens[row:end]
    count = (last - first) // (end - row)
    shortest_start = min(lengths) - count
    first_block = 0 if window is None else max(0, shortest_start - window + 1) // block_size
    last_block = -(-max(lengths) // block_size)
    num_keys = max(lengths) - first_block * block_size
    whole_prompt = shortest_start == 0 and (window is None or max(lengths) <= window)
    lone_decode = first == last - 1 and window is None
    bias = None
    if sees_to is not None or not (end - row == 1 and (whole_prompt or lone_decode)):
        device = batch.slots.device
        keys = torch.arange(num_keys, device=device) + first_block * block_size
        places = torch.tensor(lengths, device=device)[:, None] - count + torch.arange(count, device=device)
        distance = places[:, :, None] - keys
        hidden = distance < 0
        if sees_to is not None:
            hidden &= keys >= torch.from_numpy(sees_to).to(device).view(*places.shape, 1)
        if window is not None:
            hidden |= distance >= window
        bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        bias = bias.masked_fill_(hidden, -math.inf).unsqueeze(1)
    return _Group(first, last, batch.block_tables[row:end, first_block:last_block], num_keys, bias)


def _attend_group(query: torch.Tensor, cache: LayerCache, group: _Group, call: AttentionCall) -> torch.Tensor:
    """Return [B * N, query heads, value width], the attention of a group's queries [B * N, query heads, key width]."""
    keys = _gather(cache.keys, group)
    values = _gather(cache.values, group)
    num_rows, num_kv_heads = keys.shape[:2]
    num_heads, width = query.shape[1:]
    if num_rows == query.shape[0]:
        # With one token per row, the query heads of a KV head use the token dimension.
        grouped = query.view(num_rows, num_kv_heads, num_heads // num_kv_heads, width)
        causal = False
    else:
        grouped = query.transpose(0, 1).unsqueeze(0)
        causal = group.bias is None
    if call.softcap is None and call.sinks is None:
        output = F.scaled_dot_product_attention(
            grouped,
            keys,
            values,
            attn_mask=group.bias,
            is_causal=causal,
            scale=call.scaling,
            enable_gqa=grouped.shape[1] != num_kv_heads,
        )
    else:
        output = _attend_step_by_step(grouped, keys, values, group.bias, call, causal=causal)
    if num_rows == query.shape[0]:
        return output.reshape(num_rows, num_heads, -1)
    return output[0].transpose(0, 1)


def _gather(pages: torch.Tensor, group: _Group) -> torch.Tensor:
    """Gather [B, KV heads, K, width] from pages [blocks, block size, KV heads, width]."""
    rows, count = group.blocks.shape
    gathered = pages.index_select(0, group.blocks.reshape(-1))
    return gathered.view(rows, count * pages.shape[1], *pages.shape[2:])[:, : group.num_keys].transpose(1, 2)


def _attend_step_by_step(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    call: AttentionCall,
    *,
    causal: bool,
) -> torch.Tensor:
    """Attention with softcap (Gemma 2) and sinks (gpt-oss), which scaled_dot_product_attention lacks."""
    group_size = query.shape[1] // keys.shape[1]
    if group_size > 1:
        keys, values = keys.repeat_interleave(group_size, 1), values.repeat_interleave(group_size, 1)
    scores = (query @ keys.transpose(-1, -2) * call.scaling).float()
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if bias is not None:
        scores = scores + bias
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~visible, -math.inf)
    if call.sinks is not None:
        sinks = call.sinks.float().view(1, query.shape[1], -1, 1)
        scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
    probabilities = torch.softmax(scores, dim=-1)[..., : keys.shape[-2]]
    return probabilities.to(values.dtype) @ values
