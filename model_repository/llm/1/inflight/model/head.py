"""A model's head: what computes logits from the hidden states that the base model returns.

The logits of a long prompt take much memory, [tokens, vocabulary]. With the head by itself, they can be computed piece
by piece.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast


def head(module: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits [S, vocabulary] that a model's own head computes from hidden states [S, width].

    The model's whole code runs, as it may scale or cap the logits. Its base model returns the hidden states.
    """
    base = _base(module)
    assert base is not None

    def known(*_: Any, **__: Any) -> _KnownStates:
        return _KnownStates(last_hidden_state=hidden[None])

    base.forward = known  # An attribute of the object comes before the method of its class.
    try:
        tokens = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
        logits: torch.Tensor = module(input_ids=tokens, use_cache=False).logits[0]
        return logits
    finally:
        del base.forward


def vocab_size(module: torch.nn.Module) -> int:
    """The number of tokens that a model has embeddings for. It may have fewer logits, as Mllama has."""
    embeddings: Any = module.get_input_embeddings()  # type: ignore[operator]
    return int(embeddings.num_embeddings)


class _KnownStates(BaseModelOutputWithPast):
    """Hidden states and nothing else. Some heads pass on other outputs of the base model; here, these are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def hidden_states(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Collect the hidden states [1, tokens, width] that the base model returns to the head in this context.

    The list stays empty if the model has no base model, or one that returns something else.
    """
    found: list[torch.Tensor] = []

    def note(_: Any, __: Any, output: Any) -> None:
        first = output[0]  # It is a tuple, or an object that acts like one.
        if isinstance(first, torch.Tensor) and first.ndim == 3:
            found.append(first)

    base = _base(module)
    if base is None:
        yield found
        return
    hook = base.register_forward_hook(note)
    try:
        yield found
    finally:
        hook.remove()


def _base(module: Any) -> Any | None:
    base = getattr(module, "base_model", module)
    if base is module:
        return None
    # The base models of OPT and BART only wrap a decoder, which the whole model calls itself.
    return dict(base.named_children()).get("decoder", base) if len(list(base.children())) == 1 else base
