"""How a model may be understood: whose attention it calls, and what it keeps. The self-check tells which is right."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from inflight.errors import UnsupportedModel
from inflight.model.attention import interface
from inflight.model.attention.backend import AttentionBackend
from inflight.model.attention.interface import choose_attention
from inflight.model.forward import EagerForward, ForwardPass
from inflight.model.loading import support
from inflight.model.loading.attention_probe import AttentionLayer, probe_layers
from inflight.model.own_attention.cache_probe import probe_cache
from inflight.model.own_attention.padded_forward import OwnAttention, PaddedForward
from inflight.model.own_cache.cache_size import OwnCache, measure_cache
from inflight.model.own_cache.own_cache_forward import OwnCacheForward
from inflight.model.recurrent.recurrent_forward import RecurrentForward
from inflight.model.recurrent.state_layer import StateLayer, probe_states


@dataclass(frozen=True)
class Reading:
    """One way to understand a model."""

    layers: tuple[AttentionLayer, ...]
    """One for each pair of tensors in the KV cache, in order."""
    states: tuple[StateLayer, ...] = ()
    """The modules with recurrent states. Most models have none."""
    own_attention: OwnAttention | None = None
    """How the model's own code attends over our cache."""
    own_cache: OwnCache | None = None
    """How the model's own code attends over a cache of its own."""

    @property
    def has_our_attention(self) -> bool:
        """Whether the model calls our attention."""
        return self._own is None

    @property
    def _own(self) -> OwnAttention | OwnCache | None:
        return self.own_attention or self.own_cache

    @property
    def windows(self) -> list[int | None]:
        """The sliding window of each layer."""
        return [layer.window for layer in self.layers]

    @property
    def thresholds(self) -> list[int]:
        """Numbers of tokens beyond which a token may not see all tokens before it."""
        if self._own is not None:
            return list(self._own.thresholds)
        return [window for window in self.windows if window]

    def forward(self, module: torch.nn.Module, backend: AttentionBackend) -> ForwardPass:
        """Return the forward pass that runs the model's own Python code."""
        if self.own_attention is not None:
            return PaddedForward(module, self.own_attention)
        if self.own_cache is not None:
            return OwnCacheForward(module, self.own_cache)
        eager = EagerForward(module, backend, self.windows)
        return RecurrentForward(eager, self.states) if self.states else eager

    @property
    def attention(self) -> str:
        """transformers' name of the attention function."""
        return interface.NAME if self._own is None else self._own.implementation


def with_our_attention(
    module: Any, text_config: PreTrainedConfig, longest_checked: int
) -> tuple[list[Reading], int | None]:
    """Return the possible readings of a model that calls our attention, likeliest first, and a bound on the length.

    The bound is None if nothing bounds the length.
    Some models pass their window as an argument; others have it in the config alone and put it into their masks. If the
    config lists no layer types, only a trial shows whether the model uses the config's window. A window of
    `longest_checked` tokens or more is too wide to try; then it bounds the length instead.

    Raises:
        UnsupportedModel: The model does not call our attention, or not once per layer.
    """
    support.check_attention_is_ours(module)
    support.check_layers(text_config)
    states = _states(module, text_config)
    layers = probe_layers(module)
    support.check_number(text_config, layers)
    candidates, bound = _windowed(text_config, layers, longest_checked)
    sequential = tuple(dataclasses.replace(state, is_sequential=True) for state in states)
    return [Reading(each, kept) for each in candidates for kept in dict.fromkeys((states, sequential))], bound


def bound_of_own_attention(text_config: PreTrainedConfig, longest_checked: int) -> int | None:
    """Return a bound on the length of a model whose own code attends; None if nothing bounds it.

    `generate` computes with the cache of transformers, which the config's window may cut although the model's masks do
    not. A trial shows whether that happens, unless the window has `longest_checked` tokens or more.
    """
    window = support.unlisted_window(text_config)
    return window if window and window >= longest_checked else None


def with_own_attention(
    module: Any, text_config: PreTrainedConfig, max_model_len: int, longest_checked: int
) -> list[Reading]:
    """Return the possible readings of a model whose own code attends, the fastest first.

    Prompts of `longest_checked` tokens or more are too long to try.

    Raises:
        UnsupportedModel: The model has recurrent states, or keeps something else than keys and values.
    """
    if support.has_recurrent_layers(text_config):
        raise UnsupportedModel(f"{text_config.model_type} has recurrent states")
    support.check_layers(text_config, own_attention=True)
    implementation = _choose_own(module)
    parts, layers = probe_cache(module)
    ways = (True, False) if support.allows_padding(text_config, max_model_len) else (False,)
    tried = _tried(text_config, longest_checked)
    return [Reading(layers, own_attention=OwnAttention(parts, implementation, pads, tried)) for pads in ways]


def with_own_cache(
    module: Any, text_config: PreTrainedConfig, max_model_len: int, longest_checked: int
) -> list[Reading]:
    """Return the possible readings of a model that keeps a cache of its own for each sequence, the fastest first.

    Prompts of `longest_checked` tokens or more are too long to try.

    Raises:
        UnsupportedModel: The model fails, or returns no cache.
    """
    implementation, tried = _choose_own(module), _tried(text_config, longest_checked)
    cache = OwnCache(*measure_cache(module, max_model_len), implementation, tried)
    return [Reading((), own_cache=each) for each in (cache, dataclasses.replace(cache, is_sequential=True))]


def _tried(text_config: PreTrainedConfig, longest_checked: int) -> tuple[int, ...]:
    return tuple(tokens for tokens in support.thresholds(text_config) if tokens < longest_checked)


def _choose_own(module: Any) -> str:
    """Let a model attend by the fastest attention function of transformers that it has, and return its name."""
    try:
        return choose_attention(module, "sdpa")
    except ValueError:
        return choose_attention(module, "eager")


def _states(module: Any, text_config: PreTrainedConfig) -> tuple[StateLayer, ...]:
    """Return the layers with recurrent states. Raises UnsupportedModel if they cannot be served."""
    if not support.has_recurrent_layers(text_config):
        return ()
    states = probe_states(module)
    support.check_states(text_config, states)
    return states


def _windowed(
    text_config: PreTrainedConfig, layers: tuple[AttentionLayer, ...], longest_checked: int
) -> tuple[list[tuple[AttentionLayer, ...]], int | None]:
    window = getattr(text_config, "sliding_window", None)
    if not window or not layers or any(layer.window for layer in layers):
        return [layers], None
    sliding = support.sliding_layers(text_config)
    windowed = tuple(
        dataclasses.replace(layer, window=window) if slides else layer
        for layer, slides in zip(layers, sliding or [True] * len(layers), strict=True)
    )
    if sliding:
        return [windowed], None
    if window >= longest_checked:
        return [layers], window
    return [layers, windowed], None
