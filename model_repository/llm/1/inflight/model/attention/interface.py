"""Where transformers' own model code hands its attention over to us.

Models call one registered function for every layer. It gets no batch description from them (not every model passes
extra keyword arguments on), so whoever runs a forward pass says beforehand who attends.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

NAME = "inflight"


@dataclass(slots=True)
class AttentionCall:
    """What a layer asks for.

    `query` is [1, query heads, tokens, key width], `key` [1, KV heads, tokens, key width] and `value`
    [1, KV heads, tokens, value width]; the tokens are those of all requests in a row.
    """

    module: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float
    window: int | None
    """A token sees this many tokens, itself included; None: all before it."""
    softcap: float | None
    sinks: torch.Tensor | None
    """[query heads]: a logit per head that takes part in the softmax and adds no value."""
    unexpected: dict[str, Any] = field(default_factory=dict)
    """Arguments that are set and that we know nothing of."""


class AttentionImpl(Protocol):
    """Computes attention for every layer of a forward pass."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attention output, [1, tokens, query heads, value width]."""


_active = threading.local()

# Carry no meaning for the attention itself.
_HARMLESS = frozenset(
    {
        "dropout",
        "is_causal",
        "position_ids",
        "use_cache",
        "past_key_values",
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "head_mask",
        "layer_idx",
        "max_length_q",
        "max_length_k",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
    }
)


@contextmanager
def use_attention(who: AttentionImpl) -> Iterator[None]:
    """Let `who` attend in forward passes of this thread."""
    _active.who = who
    try:
        yield
    finally:
        del _active.who


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
    return _active.who.attend(call), None


AttentionInterface.register(NAME, _attend)
