"""The forward pass of a model that keeps what it has computed in a cache of its own, whatever that holds.

Each sequence has such a cache, and the model computes one sequence after the other, as for transformers' `generate`.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.embeds.use_embeds import use_embeds
from inflight.model.forward import ForwardPass, Outputs, cache_argument, new_cache, takes
from inflight.model.head import head, hidden_states
from inflight.model.own_cache.cache_size import OwnCache
from inflight.model.ragged_batch import RaggedBatch
from inflight.model.recurrent.segments import BatchStates, Segment


class OwnCacheForward(ForwardPass):
    """Runs the model's own Python code on any device. It holds the caches."""

    def __init__(self, module: torch.nn.Module, cache: OwnCache) -> None:
        self._module, self._is_sequential = module, cache.is_sequential
        self._cache_argument = cache_argument(module)
        self._takes_positions, self._takes_rows = takes(module, "position_ids"), takes(module, "logits_to_keep")
        self._caches: dict[int, Any] = {}
        """By slots."""

    def with_own_states(self, num_slots: int) -> "OwnCacheForward":
        """See `ForwardPass`. Slots take no memory until they are used."""
        other = copy.copy(self)
        other._caches = {}
        return other

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        assert batch.states is not None, "a plan for this model has states"
        self._begin(batch.states)
        wanted, places = torch.unique(rows, return_inverse=True)
        parts = [
            self._run(batch, piece, wanted) for segment in batch.states.segments for piece in self._pieces(segment)
        ]
        logits, hidden = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Outputs(logits[places], hidden)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`."""
        return head(self._module, hidden)

    def _begin(self, states: BatchStates) -> None:
        """Copy caches, and free those of requests that have ended."""
        copies = {target: copy.deepcopy(self._caches[source]) for source, target in states.copies}
        for slot in states.freed:
            self._caches.pop(slot, None)
        self._caches |= copies

    def _pieces(self, segment: Segment) -> Iterator[Segment]:
        """Divide a segment into what the model computes in one call: tokens of one sequence, output one by one."""
        rows = [segment]
        if segment.has_many:
            rows = [segment.rows(slice(row, row + 1)) for row in range(len(segment.slots))]
        for row in rows:
            for piece in row.as_generated():
                yield from piece.tokens() if self._is_sequential else [piece]

    def _run(self, batch: RaggedBatch, piece: Segment, wanted: torch.Tensor) -> Outputs:
        """Compute tokens of a sequence. `wanted` [S] are the tokens of the batch whose logits are needed, in order."""
        slot, tokens = piece.slots[0], slice(piece.first, piece.end)
        cache = self._caches[slot] if piece.continues else new_cache(self._module)
        arguments: dict[str, Any] = {self._cache_argument: cache}
        if self._takes_positions:
            arguments["position_ids"] = batch.positions[tokens][None]
        rows = wanted[(wanted >= piece.first) & (wanted < piece.end)] - piece.first
        if self._takes_rows:
            arguments["logits_to_keep"] = rows
        embeds = None if batch.embeds is None else batch.embeds.among(np.arange(piece.first, piece.end)[None])
        with hidden_states(self._module) as found, use_embeds(self._module, embeds):
            output = self._module(input_ids=batch.token_ids[tokens][None], use_cache=True, **arguments)
        self._caches[slot] = output[self._cache_argument]
        for source, target in piece.snapshots:
            self._caches[target] = copy.deepcopy(self._caches[source])
        logits = output.logits[0] if self._takes_rows else output.logits[0, rows]
        return Outputs(logits, found[0][0] if found else logits.new_zeros(0, 0))
