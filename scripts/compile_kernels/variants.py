"""Names the variants of the attention kernels that the engine can ask for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch

from inflight.model.cuda import tiling
from inflight.model.cuda.tiling import Layer

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""The types of models, with the compiler's names."""

_layer = partial(Layer, torch.bfloat16, block_size=16)
LAYERS: Mapping[str, Layer] = {
    "GPT-2": _layer(1, key_width=64, value_width=64),
    "SmolLM2 135M": _layer(3, key_width=64, value_width=64),
    "Llama 3.2 1B": _layer(4, key_width=64, value_width=64),
    "Qwen2 0.5B": _layer(7, key_width=64, value_width=64),
    "gpt-oss": _layer(8, key_width=64, value_width=64, sinks=True),
    "gpt-oss, window": _layer(8, key_width=64, value_width=64, windowed=True, sinks=True),
    "Phi-2": _layer(1, key_width=80, value_width=80),
    "Danube 1.8B": _layer(4, key_width=80, value_width=80, windowed=True),
    "GPT-NeoX 20B": _layer(1, key_width=96, value_width=96),
    "Phi-3 mini": _layer(1, key_width=96, value_width=96, windowed=True),
    "width 112": _layer(4, key_width=112, value_width=112),
    "OLMo 2 7B": _layer(1, key_width=128, value_width=128),
    "Qwen3 0.6B": _layer(2, key_width=128, value_width=128),
    "Llama 3 8B": _layer(4, key_width=128, value_width=128),
    "Qwen2 1.5B": _layer(6, key_width=128, value_width=128),
    "Qwen2 7B": _layer(7, key_width=128, value_width=128),
    "Llama 3 70B": _layer(8, key_width=128, value_width=128),
    "StarCoder2 3B": _layer(12, key_width=128, value_width=128, windowed=True),
    "GLM-4 9B": _layer(16, key_width=128, value_width=128),
    "StarCoder": _layer(48, key_width=128, value_width=128),
    "Mistral 7B": _layer(4, key_width=128, value_width=128, windowed=True),
    "Gemma 2 27B": _layer(2, key_width=128, value_width=128, capped=True),
    "Gemma 2 27B, window": _layer(2, key_width=128, value_width=128, windowed=True, capped=True),
    "DeepSeek V3": _layer(1, key_width=192, value_width=128),
    "Gemma 7B": _layer(1, key_width=256, value_width=256),
    "Gemma 3 4B": _layer(2, key_width=256, value_width=256),
    "Gemma 3 4B, window": _layer(2, key_width=256, value_width=256, windowed=True),
    "Gemma 2 9B": _layer(2, key_width=256, value_width=256, capped=True),
    "Gemma 2 9B, window": _layer(2, key_width=256, value_width=256, windowed=True, capped=True),
    "Gemma 3 1B": _layer(4, key_width=256, value_width=256),
    "Gemma 2B": _layer(8, key_width=256, value_width=256),
}
"""Attention layers of models that can be served, by the name of one such model."""


class Tile(Enum):
    """What a program computes."""

    TOKEN = "one token"
    PART = "a part of the keys of one token"
    PROMPT = "tokens of a prompt"
    COMBINE = "the sum of the parts"


@dataclass(frozen=True)
class Variant:
    """A kernel that the engine launches for some layer."""

    layer: Layer
    tile: Tile
    model: str = ""
    """A model with such a layer."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """The keyword arguments of the launch."""
        if self.tile is Tile.COMBINE:
            return tiling.combine_constants(self.layer.value_width)
        tokens = 1
        if self.tile is Tile.PROMPT:
            tokens = tiling.prompt_tile_tokens(self.layer.dtype, self.layer.group)
        return tiling.attend_constants(self.layer, tokens, split=self.tile is Tile.PART)

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether tensor cores should do the work. They do not multiply float32 exactly."""
        return self.tile is not Tile.COMBINE and self.layer.dtype != torch.float32

    def __str__(self) -> str:
        return f"{self.model}, {DTYPES[self.layer.dtype]}: {self.tile.value}"


def of_layer(layer: Layer, model: str = "") -> list[Variant]:
    """Everything that the engine launches for a layer."""
    return [Variant(layer, tile, model) for tile in Tile]


def every() -> list[Variant]:
    """All variants of `LAYERS`, in all types."""
    return _distinct(
        variant
        for name, layer in LAYERS.items()
        for dtype in DTYPES
        for variant in of_layer(replace(layer, dtype=dtype), name)
    )


def critical() -> list[Variant]:
    """A few of `every`: all types, tiles and switches, and those that need the most registers and shared memory."""
    bf16, fp16, fp32 = DTYPES
    chosen = (
        ("Gemma 2 9B, window", bf16, Tile.PROMPT),
        ("Gemma 2B", fp16, Tile.PART),
        ("Gemma 2 9B, window", fp32, Tile.PROMPT),
        ("Gemma 7B", bf16, Tile.COMBINE),
        ("DeepSeek V3", bf16, Tile.PROMPT),
        ("DeepSeek V3", fp32, Tile.PART),
        ("StarCoder", bf16, Tile.PART),
        ("StarCoder", fp32, Tile.PART),
        ("Llama 3 8B", bf16, Tile.PROMPT),
        ("Llama 3 8B", bf16, Tile.TOKEN),
        ("gpt-oss, window", bf16, Tile.TOKEN),
        ("Phi-2", fp16, Tile.PROMPT),
    )
    return [Variant(replace(LAYERS[name], dtype=dtype), tile, name) for name, dtype, tile in chosen]


def code(variant: Variant) -> tuple[Any, ...]:
    """What the machine code of a variant depends on."""
    return variant.layer.dtype, *variant.constants.items()


def _distinct(variants: Iterable[Variant]) -> list[Variant]:
    """Leave out variants with the code of an earlier one."""
    seen: dict[tuple[Any, ...], Variant] = {}
    for variant in variants:
        seen.setdefault(code(variant), variant)
    return list(seen.values())
