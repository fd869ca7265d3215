"""Decides from a model's config and attention calls whether it can be served. The self-check has the last word."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig

from inflight.config import EngineConfig
from inflight.errors import UnsupportedModel
from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.model.attention import interface
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.recurrent.state_layer import StateLayer

_ATTENTION = frozenset({"full_attention", "sliding_attention"})
_RECURRENT = frozenset({"linear_attention", "conv"})
_BOTH = frozenset({"hybrid", "hybrid_sliding"})
# Layers that choose the tokens they see by other rules. Only the model's own attention follows them.
_OF_ITS_OWN = frozenset({"chunked_attention", "indexed_attention"})
# Fields with a number of tokens beyond which the model's own attention follows another rule.
_THRESHOLDS = ("sliding_window", "attention_chunk_size", "index_topk", "keep_window_size", "window_size")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LENGTHS = ("max_position_embeddings", "max_seq_len")
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", *_LENGTHS)
# Layers without either: multilayer perceptrons and mixtures of experts.
_NEITHER = frozenset({"mlp", "moe"})


def check_config(config: PreTrainedConfig) -> None:
    """Refuse a model whose config alone shows that it cannot be served.

    Raises:
        UnsupportedModel: The message has the reason.
    """
    text_config = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{config.model_type} is an encoder-decoder")
    # The value "vision" concerns only the tokens of images, which are not served. transformers' masks use `is_causal`.
    for name in _SIZES:
        size = getattr(text_config, name, None)
        if isinstance(size, int) and size < 1:
            raise UnsupportedModel(f"{config.model_type} has {name} {size} in its config; it must be at least 1")
    both_ways = getattr(text_config, "use_bidirectional_attention", None) in (True, "all")
    if both_ways or getattr(text_config, "is_causal", True) is False:
        raise UnsupportedModel(f"{config.model_type} attends in both directions")


def has_recurrent_layers(text_config: PreTrainedConfig) -> bool:
    """Whether a config has layers with recurrent states."""
    return not (_RECURRENT | _BOTH).isdisjoint(_layer_types(text_config))


def check_states(text_config: PreTrainedConfig, states: Sequence[StateLayer]) -> None:
    """Refuse a model some of whose recurrent layers did not show their states in the dry run.

    Raises:
        UnsupportedModel: The message has the reason.
    """
    expected = {index for index, kind in enumerate(_layer_types(text_config)) if kind in _RECURRENT | _BOTH}
    found = {layer.layer_index for layer in states}
    if found != expected:
        raise UnsupportedModel(
            f"{text_config.model_type} has {len(expected)} recurrent layers, of which {len(found & expected)} keep "
            "their states in transformers' cache"
        )


def check_settings(config: PreTrainedConfig, settings: EngineConfig) -> None:
    """Refuse a model that cannot compute in its dtype, or that has recurrent states if a setting works with keys and
    values alone.

    Raises:
        UnsupportedModel: The message names the setting.
    """
    # Configs with code of their own may have a dtype's name. transformers takes it, too.
    dtype = getattr(torch, config.dtype, config.dtype) if isinstance(config.dtype, str) else config.dtype
    # The parts of a model may each have a dtype of their own.
    if settings.dtype == "auto" and not isinstance(dtype, dict | None) and dtype not in _DTYPES:
        raise UnsupportedModel(
            f"{config.model_type} has the dtype {dtype} in its config, in which it cannot compute; the setting dtype "
            "must name another one"
        )
    text_config = config.get_text_config(decoder=True)
    if not has_recurrent_layers(text_config):
        return
    _check_settings_of_states(text_config, settings, "recurrent states")


def check_settings_of_own_cache(config: PreTrainedConfig, settings: EngineConfig) -> None:
    """Refuse a model that keeps a cache of its own for each sequence if a setting works with keys and values alone.

    Raises:
        UnsupportedModel: The message names the setting.
    """
    _check_settings_of_states(config, settings, "caches of its own")


def _check_settings_of_states(config: PreTrainedConfig, settings: EngineConfig, states: str) -> None:
    used = {
        "speculative_config": bool(settings.speculative_config),
        "lora_modules": bool(settings.lora_modules),
        "lora_folder": settings.lora_folder is not None,
        "kv_transfer_config": KVTransferConfig.of(settings.kv_transfer_config).kv_role is not None,
        "kv_offloading_path": settings.kv_offloading_path is not None,
        "kv_offloading_size": settings.kv_offloading_size > 0,
        "swap_space_tokens": settings.swap_space_tokens > 0,
        "tensor_parallel_size over 1": settings.tensor_parallel_size > 1,
    }
    _refuse_used(used, f"{config.model_type} has {states}, which do not work")


def check_settings_of_own_attention(config: PreTrainedConfig, settings: EngineConfig) -> None:
    """Refuse a model whose own code attends if a setting works with our attention alone.

    Raises:
        UnsupportedModel: The message names the setting.
    """
    used = {
        "lora_modules": bool(settings.lora_modules),
        "lora_folder": settings.lora_folder is not None,
        "tensor_parallel_size over 1": settings.tensor_parallel_size > 1,
    }
    _refuse_used(used, f"{config.model_type} attends by its own code, which does not work")


def _refuse_used(used: Mapping[str, bool], reason: str) -> None:
    if names := [name for name, is_used in used.items() if is_used]:
        raise UnsupportedModel(f"{reason} with {', '.join(names)}")


def _layer_types(text_config: PreTrainedConfig) -> Sequence[str]:
    return getattr(text_config, "layer_types", None) or ()


def check_attention_is_ours(module: Any) -> None:
    """Refuse a model that silently kept an attention implementation of its own.

    Raises:
        UnsupportedModel: The message has the reason.
    """
    config = module.config
    for part in {id(c): c for c in (config, config.get_text_config(decoder=True))}.values():
        if part._attn_implementation != interface.NAME:
            raise UnsupportedModel(
                f"{config.model_type} does not let its attention be replaced (it kept {part._attn_implementation})"
            )


def check_layers(text_config: PreTrainedConfig, *, own_attention: bool = False) -> None:
    """Refuse a model with layers that neither our attention knows nor, if `own_attention`, our cache.

    Raises:
        UnsupportedModel: The message names their types.
    """
    known = _ATTENTION | _RECURRENT | _BOTH | _NEITHER | (_OF_ITS_OWN if own_attention else set())
    if others := set(_layer_types(text_config)) - known:
        raise UnsupportedModel(f"{text_config.model_type} has layers of type {', '.join(sorted(others))}")


def check_number(text_config: PreTrainedConfig, layers: Sequence[AttentionLayer]) -> None:
    """Refuse a model that did not call our attention once per layer.

    Raises:
        UnsupportedModel: The message has both numbers.
    """
    kinds = _attending(text_config)
    expected = len(kinds) if _layer_types(text_config) else text_config.num_hidden_layers
    if len(layers) != expected:
        raise UnsupportedModel(
            f"{text_config.model_type} has {expected} layers, but attention was called {len(layers)} times"
        )


def sliding_layers(text_config: PreTrainedConfig) -> list[bool]:
    """Return which of the layers with attention have a sliding window; an empty list if the config does not say."""
    return [kind in ("sliding_attention", "hybrid_sliding") for kind in _attending(text_config)]


def _attending(text_config: PreTrainedConfig) -> list[str]:
    """Return the types of the layers with attention."""
    return [kind for kind in _layer_types(text_config) if kind in _ATTENTION | _BOTH]


def unlisted_window(text_config: PreTrainedConfig) -> int | None:
    """Return the window to which transformers' cache cuts every layer. Its mask need not have that window.

    None if the config has no window, or lists the types of layers. Then masks and the cache follow the list.
    """
    return None if _layer_types(text_config) else getattr(text_config, "sliding_window", None)


def thresholds(text_config: PreTrainedConfig) -> tuple[int, ...]:
    """Return the numbers of tokens beyond which a model's own code may attend by another rule."""
    values = (getattr(text_config, name, None) for name in _THRESHOLDS)
    return tuple(value for value in values if value is not None)


def allows_padding(text_config: PreTrainedConfig, max_model_len: int) -> bool:
    """Whether padding may change nothing that the self-check cannot see.

    Llama 4 scales queries by the number of tokens before them, padding included, from `floor_scale` tokens on. Doge
    chooses `keep_window_size` tokens, padding included, if there are more.
    """
    if getattr(text_config, "attn_temperature_tuning", False) and max_model_len >= text_config.floor_scale:
        return False
    chosen = getattr(text_config, "keep_window_size", None)
    return chosen is None or max_model_len <= chosen


def max_length(text_config: PreTrainedConfig) -> int | None:
    """The longest sequence that the model computes correctly, or None if the config does not say.

    With LongRoPE, longer ones are correct if the frequencies can be switched, see `rope_switch`.
    """
    bounds = (max_positions(text_config), longrope_length(text_config))
    return min((bound for bound in bounds if bound is not None), default=None)


def max_positions(text_config: PreTrainedConfig) -> int | None:
    """The number of positions for which the model is made, or None if the config does not say."""
    bounds = (getattr(text_config, name, None) for name in _LENGTHS)
    return min((bound for bound in bounds if bound is not None), default=None)


def longrope_length(text_config: PreTrainedConfig) -> int | None:
    """The tokens beyond which the frequencies of LongRoPE change. None if the model has another kind of RoPE.

    transformers' code changes them for the whole batch once one sequence is longer. Those of "dynamic" change beyond
    max_position_embeddings, which is a bound in any case.
    """
    for rope in _rope_parameters(text_config):
        if rope.get("rope_type", rope.get("type")) == "longrope":
            original: int | None = rope.get("original_max_position_embeddings")
            return original or getattr(text_config, "original_max_position_embeddings", None)
    return None


def rope_switch(config: PreTrainedConfig) -> int | None:
    """The tokens beyond which `generate` computes all keys and values of a sequence anew, with other frequencies.

    It does so for models that have the field. For others, it would keep keys that do not fit the later ones.
    """
    text_config = config.get_text_config(decoder=True)
    length = longrope_length(text_config)
    return length if config is text_config and hasattr(config, "original_max_position_embeddings") else None


def _rope_parameters(text_config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    """The RoPE parameters of a config, which may have one set per layer type."""
    rope = getattr(text_config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    yield from nested or [rope]
