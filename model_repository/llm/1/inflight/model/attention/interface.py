"""The attention function that transformers' models call instead of their own.

Models call this one registered function in every layer. They cannot hand it a description of the batch, as not every
model passes extra keyword arguments on. So the code that runs a forward pass sets the implementation beforehand, with
`use_attention`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "inflight"
WITH_MASKS = "inflight_with_masks"
"""The same function, but models make masks for it, as for their own attention."""


@dataclass(slots=True)
class AttentionCall:
    """The arguments of one layer's attention call.

    `query` is [1, query heads, tokens, key width], `key` [1, KV heads, tokens, key width] and `value`
    [1, KV heads, tokens, value width]. The tokens of all requests follow one another.
    """

    module: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float
    window: int | None
    """How many tokens a token sees, including itself; None if it sees all tokens before it."""
    softcap: float | None
    sinks: torch.Tensor | None
    """[query heads], a logit per head that takes part in the softmax but has no value."""
    unexpected: dict[str, Any] = field(default_factory=dict)
    """Arguments that the model sets and that no backend supports."""


class AttentionImpl(Protocol):
    """Computes attention for every layer of a forward pass."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Return the attention output [1, tokens, query heads, value width]."""


_active = threading.local()

# These arguments do not change the attention output.
_HARMLESS = frozenset(
    {
        "dropout",
        "is_causal",
        "position_ids",
        "use_cache",
        "past_key_values",
        "cache",
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "head_mask",
        "layer_idx",
        "logits_to_keep",
        "max_length_q",
        "max_length_k",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
    }
)


@contextmanager
def use_attention(implementation: AttentionImpl) -> Iterator[None]:
    """Use `implementation` in the forward passes of this thread."""
    _active.implementation = implementation
    try:
        yield
    finally:
        del _active.implementation


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    unexpected = {name: x for name, x in others.items() if x is not None and name not in _HARMLESS}
    if attention_mask is not None:
        unexpected["attention_mask"] = attention_mask
    call = AttentionCall(
        module,
        query,
        key,
        value,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window or None,
        softcap=softcap or None,
        sinks=s_aux,
        unexpected=unexpected,
    )
    return _active.implementation.attend(call), None


AttentionInterface.register(NAME, _attend)
AttentionInterface.register(WITH_MASKS, _attend)
AttentionMaskInterface.register(WITH_MASKS, eager_mask)


def choose_attention(module: Any, name: str) -> str:
    """Let a model attend by one of transformers' attention functions, or by ours. Return the name of what it uses.

    This concerns all of its forward passes, but not its encoders of images and sounds. A model without a choice keeps
    what it has. If it was loaded with ours and ignored that, its masks must become those of its own code, which is like
    "eager".

    Raises:
        ValueError: The model does not have this function.
    """
    encoders = _encoders(module.config)
    others = {key: name for key in module.config.sub_configs if key not in encoders}
    try:
        module.set_attn_implementation({"": name, **others, **dict.fromkeys(encoders, "sdpa")} if encoders else name)
    except ValueError:
        if not encoders:
            raise
        module.set_attn_implementation({"": name, **others, **dict.fromkeys(encoders, "eager")})
    if module.config._attn_implementation == NAME != name:
        module.config._attn_implementation = "eager"
    return str(module.config._attn_implementation)


@contextmanager
def attending_by(module: Any, name: str) -> Iterator[None]:
    """Within this context, a model attends by another attention function. Raises what `choose_attention` raises."""
    served = module.config._attn_implementation
    choose_attention(module, name)
    try:
        yield
    finally:
        choose_attention(module, served)


def _encoders(config: Any) -> list[str]:
    """Return the names of the parts of a model's config that do not have its decoder."""
    text_config = config.get_text_config(decoder=True)
    parts = {key: getattr(config, key, None) for key in config.sub_configs}
    return [
        key
        for key, part in parts.items()
        if part is not None and part is not text_config and part.get_text_config(decoder=True) is not text_config
    ]
