"""transformers' cache for the sequences of a group, whose keys and values lie in blocks."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.own_attention.cache_probe import CachePart
from inflight.model.own_attention.padded_group import PaddedGroup


class PagedCache(Cache):
    """The cache of one forward pass over a group."""

    def __init__(self, group: PaddedGroup, caches: Mapping[CachePart, LayerCache]) -> None:
        count = 1 + max(part.layer_index for part in caches)
        super().__init__(layers=[_PagedLayer(group) for _ in range(count)])
        self._group, self._caches = group, caches
        self._rows: dict[int, torch.Tensor] = {}
        """For layers with so many KV heads, the index of each head of each context token [B * KV heads * L]."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values [B, KV heads, N, width]. Return those of the contexts [B, KV heads, L, width]."""
        layer = self.layers[layer_idx]
        assert isinstance(layer, _PagedLayer)
        layer.length += key_states.shape[2]
        cache = self._caches[CachePart(layer_idx, False)]
        cache.write(self._group.slots, _by_token(key_states, cache.keys), _by_token(value_states, cache.values))
        return self._context(cache.keys, key_states), self._context(cache.values, value_states)

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Store an indexer's keys [B, N, width]. Return those of the contexts [B, L, width]."""
        cache, new = self._caches[CachePart(layer_idx, True)], indexer_key_states[:, None]
        cache.keys.flatten(0, 1).index_copy_(0, self._group.slots, _by_token(new, cache.keys))
        return self._context(cache.keys, new)[:, 0]

    def _context(self, pages: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return what pages [blocks, block size, KV heads, width] hold of the contexts, in the type of `new`.

        The result is contiguous, as some models count on it.
        """
        num_heads, width = pages.shape[2:]
        rows = self._rows.get(num_heads)
        if rows is None:
            heads = torch.arange(num_heads, device=pages.device)
            slots = self._group.context_slots[:, None]
            rows = self._rows[num_heads] = (slots * num_heads + heads[:, None]).flatten()
        # Values may have no width: Mistral Large 4 keeps there what it rotates, in some layers nothing.
        found = pages.flatten(0, 2).index_select(0, rows)
        return found.view(len(new), num_heads, self._group.mask.shape[1], width).to(new.dtype)


class _PagedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Knows how many tokens a layer has. `PagedCache` has the tensors."""

    def __init__(self, group: PaddedGroup) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = group.num_cached

    def get_seq_length(self) -> int:
        """Return the number of tokens in the cache, padding included."""
        return self.length


def _by_token(new: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Turn [B, KV heads, N, width] into [B * N, KV heads, width], in the type of the pages."""
    return new.transpose(1, 2).flatten(0, 1).to(pages.dtype)
