"""A dry run that finds out what a model keeps in transformers' cache."""

from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, DynamicLayer

from inflight.errors import UnsupportedModel
from inflight.model.cache.kv_tensors import LayerShape
from inflight.model.forward import cache_argument, takes
from inflight.model.loading.attention_probe import AttentionLayer

_TOKENS = 3


class CachePart(NamedTuple):
    """Tensors that a model appends to its cache once in a forward pass."""

    layer_index: int
    """transformers' `layer_idx`."""
    is_index: bool
    """Whether they are the keys of an indexer, which chooses the tokens to attend to. Otherwise: keys and values."""


def probe_cache(module: torch.nn.Module) -> tuple[tuple[CachePart, ...], tuple[AttentionLayer, ...]]:
    """Run three tokens through a model with a cache of transformers' own. Return what it keeps there, in order.

    Raises:
        UnsupportedModel: The model fails, or keeps something else than keys and values of each token.
    """
    model_type = module.config.model_type  # type: ignore[union-attr]
    cache = _Recorder()
    tokens = torch.arange(_TOKENS, device=next(module.parameters()).device)[None]
    arguments = {"position_ids": tokens} if takes(module, "position_ids") else {}
    try:
        with torch.inference_mode():
            module(input_ids=tokens, **arguments, use_cache=True, **{cache_argument(module): cache})
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(f"{model_type} fails with a cache: {type(error).__name__}: {error}") from error
    if not cache.found:
        raise UnsupportedModel(f"{model_type} keeps no keys and values in transformers' cache")
    return tuple(cache.found), tuple(AttentionLayer(shape, None) for shape in cache.found.values())


class _Recorder(Cache):
    """A cache that notes the shapes of what it gets."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.found: dict[CachePart, LayerShape] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note the shape, and do what the base class does."""
        (_, heads, _, key_width), (_, value_heads, _, value_width) = key_states.shape, value_states.shape
        if heads != value_heads:
            raise UnsupportedModel(f"layer {layer_idx} has keys of {heads} heads and values of {value_heads}")
        self._note(CachePart(layer_idx, False), key_states, LayerShape(heads, key_width, value_width))
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Note the shape."""
        width = indexer_key_states.shape[-1]
        self._note(CachePart(layer_idx, True), indexer_key_states[:, None], LayerShape(1, width, 0))
        return indexer_key_states

    def _note(self, part: CachePart, new: torch.Tensor, shape: LayerShape) -> None:
        if new.shape[0] != 1 or new.shape[2] != _TOKENS:
            raise UnsupportedModel(f"layer {part.layer_index} caches a tensor of shape {list(new.shape)}")
        if part in self.found:
            raise UnsupportedModel(f"layer {part.layer_index} appends to its cache more than once in a forward pass")
        self.found[part] = shape
