"""The forward pass of a model whose own code attends.

The model computes what it would compute for transformers' `generate`: sequences with equally many new tokens, padded on
the left, and a mask that hides the padding. Only its cache is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.embeds.use_embeds import use_embeds
from inflight.model.forward import ForwardPass, Outputs, cache_argument, takes
from inflight.model.head import head, hidden_states
from inflight.model.own_attention.cache_probe import CachePart
from inflight.model.own_attention.padded_group import PaddedGroup, divide
from inflight.model.own_attention.paged_cache import PagedCache
from inflight.model.ragged_batch import RaggedBatch


@dataclass(frozen=True)
class OwnAttention:
    """How the own code of a model attends."""

    parts: tuple[CachePart, ...]
    """What the model keeps in its cache, in order."""
    implementation: str
    """transformers' name of the attention function."""
    pads: bool
    """Whether padding changes nothing. If not, only sequences of equal length are computed together."""
    thresholds: tuple[int, ...] = ()
    """Numbers of tokens beyond which it may attend by another rule."""


class PaddedForward(ForwardPass):
    """Runs the model's own Python code, attention included, on any device."""

    def __init__(self, module: torch.nn.Module, attention: OwnAttention) -> None:
        self._module, self._parts, self.pads = module, attention.parts, attention.pads
        self._cache_argument = cache_argument(module)
        self._takes_positions, self._takes_rows = takes(module, "position_ids"), takes(module, "logits_to_keep")

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        by_part = dict(zip(self._parts, caches, strict=True))
        wanted = rows.cpu().numpy()
        groups = divide(batch, caches[0].keys.shape[1], pads=self.pads)
        parts = [self._run(batch, group, PagedCache(group, by_part), wanted) for group in groups]
        return Outputs(
            _in_order([part.wanted for part in parts], [part.outputs.logits for part in parts]),
            _in_order([part.tokens for part in parts], [part.outputs.hidden for part in parts]),
        )

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`."""
        return head(self._module, hidden)

    def _run(self, batch: RaggedBatch, group: PaddedGroup, cache: PagedCache, wanted: NDArray[np.int64]) -> "_Part":
        """Compute a group. `wanted` [S] are the tokens whose logits are needed."""
        indices, rows, columns = _find(wanted, group.tokens)
        arguments: dict[str, Any] = {self._cache_argument: cache}
        tokens = torch.from_numpy(group.tokens).to(batch.token_ids.device)
        if self._takes_positions:
            arguments["position_ids"] = batch.positions[tokens]
        if self._takes_rows:
            kept, columns = np.unique(columns, return_inverse=True)
            arguments["logits_to_keep"] = torch.from_numpy(kept).to(tokens.device)
        embeds = None if batch.embeds is None else batch.embeds.among(group.tokens)
        with hidden_states(self._module) as found, use_embeds(self._module, embeds):
            output = self._module(
                input_ids=batch.token_ids[tokens], attention_mask=group.mask, use_cache=True, **arguments
            )
        logits = output.logits[torch.from_numpy(rows), torch.from_numpy(columns)]
        hidden = found[0].flatten(0, 1) if found else logits.new_zeros(0, 0)
        return _Part(indices, group.tokens.reshape(-1), Outputs(logits, hidden))


class _Part(NamedTuple):
    """What a group of a batch contributes to its outputs."""

    wanted: NDArray[np.int64]
    """The index of each of its logits among all."""
    tokens: NDArray[np.int64]
    """The index of each of its hidden states among all."""
    outputs: Outputs


def _find(
    wanted: NDArray[np.int64], tokens: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return which tokens of `wanted` [S] a group [B, N] has: their indices in `wanted`, and their rows and columns."""
    offsets = wanted[:, None] - tokens[:, 0]
    indices, rows = np.nonzero((offsets >= 0) & (offsets < tokens.shape[1]))
    return indices, rows, offsets[indices, rows]


def _in_order(indices: Sequence[NDArray[np.int64]], parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join the rows of several tensors. Row i of part p becomes row `indices[p][i]`."""
    joined = torch.cat(list(parts))
    if not len(joined):
        return joined
    result = torch.empty_like(joined)
    result[torch.from_numpy(np.concatenate(indices)).to(joined.device)] = joined
    return result
