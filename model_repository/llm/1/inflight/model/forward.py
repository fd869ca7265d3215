"""The forward pass of a transformers model over a flat row of tokens."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from inflight.model.attention.backend import AttentionBackend
from inflight.model.attention.interface import use_attention
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.embeds.use_embeds import use_embeds
from inflight.model.head import head, hidden_states
from inflight.model.images.features import Features
from inflight.model.ragged_batch import RaggedBatch


class Outputs(NamedTuple):
    """What a model computes for a batch of T tokens, S of which are sampled."""

    logits: torch.Tensor
    """[S, vocabulary]."""
    hidden: torch.Tensor
    """[T, width], what the head reads: the states after the last norm. [0, 0] if the model does not show them."""


class ForwardPass(ABC):
    """Runs a model over a batch. Most forward passes work with any caches, so they have nothing to prepare."""

    def bytes_to_prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> int:
        """Return how much device memory in bytes `prepare` will take, given caches of one block or more.

        This may write into block 0.
        """
        return 0

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """Prepare for steps over `caches` with up to `max_rows` requests of up to `max_blocks` blocks each.

        Call this while the caches are still empty. Later steps must use the same caches.
        """

    def with_own_states(self, num_slots: int) -> "ForwardPass":
        """Return the same forward pass with so many slots for states of its own, if the model keeps any."""
        return self

    @abstractmethod
    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        """Write keys and values of all tokens to `caches`. The logits are those of the tokens `rows` [S]."""

    @abstractmethod
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [S, vocabulary] of hidden states [S, width]. See `model.head`."""


@dataclass(frozen=True)
class EagerForward(ForwardPass):
    """Runs the model's own Python code on any device."""

    module: torch.nn.Module
    backend: AttentionBackend
    windows: Sequence[int | None]
    """The sliding window of each attention call, in order; None if it has none."""
    ahead: Sequence[bool] = ()
    """Whether the tokens of an image see all of it in each attention call; empty if in none."""

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        # A state-space model may have no attention.
        with use_attention(self.backend.attend(batch, caches, self.windows, self.ahead)) if caches else nullcontext():
            positions, features = model_inputs(self.module, batch)
            with use_embeds(self.module, batch.embeds):
                return forward(self.module, batch.token_ids, positions, rows, features)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`."""
        return head(self.module, hidden)


def model_inputs(module: torch.nn.Module, batch: RaggedBatch) -> tuple[torch.Tensor, Features | None]:
    """Return the positions and the features of images that `forward` takes for a batch."""
    if batch.images is None or batch.images.features is None:
        return batch.positions, None
    return batch.images.inputs(module, batch.token_ids)


def forward(
    module: torch.nn.Module,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    rows: torch.Tensor,
    features: Features | None = None,
) -> Outputs:
    """Run a model over `token_ids` [T]. The logits are those of the tokens `rows` [S].

    `positions` is [T], or [dimensions, T]. `features` take the places of the tokens of images.

    The caller chooses the attention with `use_attention`. The model's own head computes the logits, as it may scale or
    cap them. It runs only on `rows` if the model has the argument `logits_to_keep`.
    """
    position_ids = positions[None] if positions.dim() == 1 else positions[:, None]
    arguments: dict[str, Any] = {"input_ids": token_ids[None], "position_ids": position_ids, "use_cache": False}
    if features is not None:
        arguments["mm_encoder_outputs"] = {"image": features.output()}
    with hidden_states(module) as hidden:
        if takes(module, "logits_to_keep"):
            logits = module(**arguments, logits_to_keep=rows).logits[0]
        else:
            logits = module(**arguments).logits[0][rows]
    return Outputs(logits, hidden[0][0] if hidden else logits.new_zeros(0, 0))


def takes(module: torch.nn.Module, name: str) -> bool:
    """Whether the model's `forward` has an argument called `name`."""
    return name in inspect.signature(module.forward).parameters


def cache_argument(module: torch.nn.Module) -> str:
    """Return the name of the argument that is transformers' cache. It was renamed in 5.24, code of models was not.

    RWKV has a list of tensors instead.
    """
    names = ("past_key_values", "cache", "state")
    return next((name for name in names if takes(module, name)), "cache")


def new_cache(module: Any) -> DynamicCache | None:
    """Return the cache that `generate` gives a model with the first tokens; None if the model makes its own."""
    if not module._supports_default_dynamic_cache():
        return None
    return DynamicCache(config=module.config.get_text_config(decoder=True))
