"""One forward pass of a transformers model over a flat row of tokens."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from inflight.model.attention.backend import AttentionBackend
from inflight.model.attention.interface import use_attention
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.ragged_batch import RaggedBatch


class ForwardPass(Protocol):
    """A model over a batch."""

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """Get ready for these caches, and no others from then on, for up to `max_rows` requests of up to `max_blocks`
        blocks each. Nothing is in the caches yet."""

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> torch.Tensor:
        """Logits [S, vocabulary] of the tokens `rows` [S]; keys and values of all tokens go into `caches`."""


@dataclass(frozen=True)
class EagerForward:
    """The model's own code, operator by operator, on any device."""

    module: torch.nn.Module
    backend: AttentionBackend
    windows: Sequence[int | None]
    """The sliding window of each attention call, in order; None for none."""

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """See `ForwardPass`: nothing depends on them."""

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> torch.Tensor:
        with use_attention(self.backend.attend(batch, caches, self.windows)):
            return forward(self.module, batch.token_ids, batch.positions, rows)


def forward(
    module: torch.nn.Module, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Logits [S, vocabulary] of the tokens `rows` [S] of a flat row of tokens [T] at `positions` [T].

    `use_attention` sets the attention. The model's own head runs, for it may scale or cap logits; if the model allows
    it, only on `rows`.
    """
    arguments = {"input_ids": token_ids[None], "position_ids": positions[None], "use_cache": False}
    if takes(module, "logits_to_keep"):
        logits: torch.Tensor = module(**arguments, logits_to_keep=rows).logits[0]
        return logits
    logits = module(**arguments).logits[0]
    return logits[rows]


def takes(module: torch.nn.Module, name: str) -> bool:
    """Whether the model's forward has an argument of that name."""
    return name in inspect.signature(module.forward).parameters
