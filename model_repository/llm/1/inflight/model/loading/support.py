"""Which models are served: what can be told from config and calls. The self-check has the last word."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import PreTrainedConfig

from inflight.errors import UnsupportedModel
from inflight.model.attention import interface
from inflight.model.loading.attention_probe import AttentionLayer

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
# Their frequencies depend on the longest sequence in the batch once it is over the original length.
_BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def check_config(config: PreTrainedConfig) -> None:
    """Refuse what the config alone tells cannot be served.

    Raises:
        UnsupportedModel: with the reason.
    """
    text_config = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{config.model_type} is an encoder-decoder")
    # "vision" is about the tokens of images, and there are none; `is_causal` is what transformers' masks go by.
    both_ways = getattr(text_config, "use_bidirectional_attention", None) in (True, "all")
    if both_ways or getattr(text_config, "is_causal", True) is False:
        raise UnsupportedModel(f"{config.model_type} attends in both directions")
    others = set(getattr(text_config, "layer_types", None) or ()) - _LAYER_TYPES
    if others:
        raise UnsupportedModel(f"{config.model_type} has layers of type {', '.join(sorted(others))}")


def check_attention_is_ours(module: Any) -> None:
    """Refuse a model that silently kept an attention of its own.

    Raises:
        UnsupportedModel: with the reason.
    """
    config = module.config
    for part in {id(c): c for c in (config, config.get_text_config(decoder=True))}.values():
        if part._attn_implementation != interface.NAME:
            raise UnsupportedModel(
                f"{config.model_type} does not let its attention be replaced (it kept {part._attn_implementation})"
            )


def readings(
    text_config: PreTrainedConfig, layers: Sequence[AttentionLayer], longest_checked: int
) -> tuple[list[tuple[AttentionLayer, ...]], int | None]:
    """What the layers that the dry run saw may mean, likeliest first, and a bound on the length if that stays open.

    A window may come as an argument, or stand in the config alone, for models that keep it in their masks. Whether a
    model without layer types uses the config's window can only be tried; one too wide to try bounds the length.

    Raises:
        UnsupportedModel: attention is not called once per layer.
    """
    expected = text_config.num_hidden_layers
    if len(layers) != expected:
        raise UnsupportedModel(
            f"{text_config.model_type} has {expected} layers, but attention was called {len(layers)} times"
        )
    as_seen = tuple(layers)
    window = getattr(text_config, "sliding_window", None)
    if not window or any(layer.window for layer in layers):
        return [as_seen], None
    types = getattr(text_config, "layer_types", None)
    sliding = [kind == "sliding_attention" for kind in types] if types else [True] * expected
    windowed = tuple(
        dataclasses.replace(layer, window=window) if slides else layer
        for layer, slides in zip(layers, sliding, strict=True)
    )
    if types:
        return [windowed], None
    if window >= longest_checked:
        return [as_seen], window
    return [as_seen, windowed], None


def max_length(text_config: PreTrainedConfig) -> int | None:
    """The longest sequence that comes out right, or None if the config does not say."""
    bounds = [getattr(text_config, "max_position_embeddings", None)]
    for rope in _rope_parameters(text_config):
        if rope.get("rope_type", rope.get("type")) in _BATCH_DEPENDENT_ROPE:
            original = rope.get("original_max_position_embeddings")
            bounds.append(original or getattr(text_config, "original_max_position_embeddings", None))
    return min((bound for bound in bounds if bound is not None), default=None)


def _rope_parameters(text_config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    """The rope parameters of a config, which may hold one set for each layer type."""
    rope = getattr(text_config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    yield from nested or [rope]
