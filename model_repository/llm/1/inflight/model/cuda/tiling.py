"""Chooses the constants that the attention kernels are compiled with: tiles, warps and pipeline stages.

`attend` launches with these constants and `python -m scripts.compile_kernels` compiles them, so both name the same
variants. With these constants, no variant in half precision spills registers on A100, H100 or B200, and those in
float32 spill next to none.
"""

from dataclasses import dataclass
from typing import Any

import torch

# A tensor core multiplies tiles of at least so many rows and columns.
_MIN_SIDE = 16


@dataclass(frozen=True)
class Layer:
    """The properties of an attention layer for which the kernels are compiled anew."""

    dtype: torch.dtype
    group: int
    """Query heads per KV head."""
    block_size: int
    key_width: int
    value_width: int
    windowed: bool = False
    capped: bool = False
    sinks: bool = False


def prompt_tile_tokens(dtype: torch.dtype, group: int) -> int:
    """The number of tokens in a tile of a prompt, for layers with `group` query heads per KV head.

    In half precision a tile has 64 rows, which a warp group of Hopper multiplies at once. Short prompts would have too
    few tiles of more rows.
    """
    return max(1, (32 if dtype == torch.float32 else 64) // group)


def attend_constants(layer: Layer, tile_tokens: int, *, split: bool) -> dict[str, Any]:
    """The constants of `_attend` for tiles of up to `tile_tokens` tokens. `split`: the keys are cut into parts."""
    padded_key, padded_value = _padded(layer.key_width), _padded(layer.value_width)
    rows, widest = _padded(tile_tokens * layer.group), max(padded_key, padded_value)
    # No tensor core multiplies float32 exactly. Without one, both operands of a product stay in registers.
    exact = layer.dtype == torch.float32
    return {
        "GROUP": layer.group,
        "BLOCK": layer.block_size,
        "KEY_WIDTH": layer.key_width,
        "VALUE_WIDTH": layer.value_width,
        "PADDED_KEY": padded_key,
        "PADDED_VALUE": padded_value,
        "ROWS": rows,
        "KEYS": 16 if exact else 32 if widest > 128 else 64,
        "SPLIT": split,
        "WINDOWED": layer.windowed,
        "CAPPED": layer.capped,
        "SINKS": layer.sinks,
        # By default, tensor cores round float32 to a mantissa of 10 bits.
        "PRECISION": "ieee" if exact else "tf32",
        "num_warps": _exact_warps(rows, widest) if exact else 8 if rows * widest > 64 * 64 else 4,
        "num_stages": 2 if exact else 3,
    }


def combine_constants(value_width: int) -> dict[str, Any]:
    """The constants of `_combine_parts`."""
    return {"VALUE_WIDTH": value_width, "PADDED_VALUE": _padded(value_width), "num_warps": 4, "num_stages": 1}


def _exact_warps(rows: int, widest: int) -> int:
    """Warps with enough registers for a tile in float32."""
    if rows > 32:
        return 16
    return 8 if rows * widest > 16 * 128 else 4


def _padded(size: int) -> int:
    """The next power of two that a tensor core can multiply."""
    return max(_MIN_SIDE, 1 << (size - 1).bit_length())
