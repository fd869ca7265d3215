"""How the tensors of each format become weights.

All functions take the tensors of one linear layer, by the names that they have in the checkpoint, and the model's
`quantization_config`. They return the weight [outputs, inputs] in float32.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from inflight.model.loading.quantized_checkpoint.packed_integers import unpacked, unpacked_awq

Tensors = Mapping[str, torch.Tensor]

BITS_OF_GPTQ = (2, 4, 8)
"""Weights of 3 bits are spread over two words, and nobody seems to publish such models."""

_WORD = 32
_BLOCK_OF_FP8 = (128, 128)
_SCALES_OF_FP8 = ("weight_scale_inv", "qscale_weight", "weight_scale")
"""What different tools call the same scales."""
_GROUP_OF_NVFP4 = 16
# The numbers of 4 bits with an exponent of 2 bits: first the positive ones.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def from_gptq(tensors: Tensors, config: Mapping[str, Any]) -> torch.Tensor:
    """GPTQ (Frantar et al. 2023), as AutoGPTQ and GPTQModel store it.

    qweight [inputs * bits / 32, outputs] and qzeros [groups, outputs * bits / 32] are packed in int32; scales are
    [groups, outputs]. g_idx [inputs] names the group of each input where they are not in order (`desc_act`).

    Raises:
        ValueError: The weights have another number of bits than `BITS_OF_GPTQ`.
    """
    # Some layers may have other bits than the config says.
    bits = _WORD * tensors["qzeros"].shape[1] // tensors["qweight"].shape[1]
    if bits not in BITS_OF_GPTQ:
        raise ValueError(f"a layer has weights of {bits} bits; with gptq they must have one of {BITS_OF_GPTQ}")
    weights = unpacked(tensors["qweight"].T, bits)
    packed = tensors["qzeros"]
    if config.get("checkpoint_format", config.get("format")) != "gptq_v2":
        # The first version of the format stores zero points less one. One is taken from all in a word at once, so a
        # zero point of 0 borrows from the next.
        packed = packed + sum(1 << shift for shift in range(0, _WORD, bits))
    groups = tensors.get("g_idx")
    if groups is None:
        groups = _groups(weights, tensors["scales"], config)
    return _scaled(weights, unpacked(packed, bits).float(), tensors["scales"], groups)


def from_awq(tensors: Tensors, config: Mapping[str, Any]) -> torch.Tensor:
    """AWQ (Lin et al. 2024) in AutoAWQ's "gemm" format: like GPTQ's, but packed along the outputs, in another order.

    qweight is [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs].
    """
    weights = unpacked_awq(tensors["qweight"]).T.contiguous()
    groups = _groups(weights, tensors["scales"], config)
    return _scaled(weights, unpacked_awq(tensors["qzeros"]).float(), tensors["scales"], groups)


def from_bitsandbytes(tensors: Tensors, config: Mapping[str, Any]) -> torch.Tensor:
    """The formats of bitsandbytes: NF4 and FP4 (QLoRA, Dettmers et al. 2023), and int8 (LLM.int8(), 2022)."""
    if "SCB" in tensors:
        # The largest absolute weight of each output is 127.
        return tensors["weight"].float() * (tensors["SCB"].float() / 127)[:, None]
    state = json.loads(bytes(next(t for n, t in tensors.items() if ".quant_state." in n).tolist()))
    largest = tensors["weight.absmax"]
    if "weight.nested_absmax" in tensors:
        blocks = tensors["weight.nested_absmax"].repeat_interleave(state["nested_blocksize"])[: len(largest)]
        largest = tensors["weight.nested_quant_map"][largest.long()] * blocks + state["nested_offset"]
    packed = tensors["weight"].view(torch.uint8).flatten()
    # The first of two weights is in the high bits.
    codes = torch.stack([packed >> 4, packed & 15], dim=1).flatten()
    # A weight with an odd number of elements is followed by half a byte of padding.
    values = tensors["weight.quant_map"].float()[codes.long()][: math.prod(state["shape"])]
    scales = largest.float().repeat_interleave(state["blocksize"])[: len(values)]
    return (values * scales).view(state["shape"])


def from_fp8(tensors: Tensors, config: Mapping[str, Any]) -> torch.Tensor:
    """FP8 with a scale for each block, as DeepSeek and Qwen store it, or with one scale for all, as AutoFP8 does.

    weight is [..., outputs, inputs] and weight_scale_inv [..., blocks of outputs, blocks of inputs]. The last block
    may be smaller than the others. Scales of 8 bits are exponents.
    """
    weight = tensors["weight"].float()
    scales = tensors[next(filter(tensors.__contains__, _SCALES_OF_FP8), _SCALES_OF_FP8[0])]
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    scales = scales.float()
    if scales.numel() == 1:
        return weight * scales.view(())
    sizes = config.get("weight_block_size", _BLOCK_OF_FP8) or weight.shape[-2:]
    for axis, usual in zip((-2, -1), sizes, strict=True):
        length = weight.shape[axis]
        size = _sharing(scales.shape[axis], length, usual)
        scales = scales.repeat_interleave(size, axis).narrow(axis, 0, length)
    return weight * scales


def from_modelopt(tensors: Tensors, config: Mapping[str, Any]) -> torch.Tensor:
    """FP8 with one scale, and NVFP4 with an FP8 scale for 16 inputs and one for all, as NVIDIA's Model Optimizer stores
    them."""
    weight, scale = tensors["weight"], tensors["weight_scale"].float()
    if weight.dtype != torch.uint8:
        return weight.float() * scale.view(-1, 1)  # One scale, or one for each output.
    values = torch.tensor(_E2M1, device=weight.device)[torch.stack([weight & 15, weight >> 4], dim=-1).long()]
    groups = values.view(*scale.shape, _GROUP_OF_NVFP4)
    return (groups * (scale * tensors["weight_scale_2"].float())[..., None]).flatten(1)


def _groups(weights: torch.Tensor, scales: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """The group of each input [inputs], for weights [outputs, inputs] and scales [groups, outputs]."""
    inputs, size = weights.shape[1], int(config["group_size"])
    # -1 stands for one group.
    return torch.arange(inputs, device=weights.device) // _sharing(len(scales), inputs, inputs if size == -1 else size)


def _sharing(count: int, length: int, usual: int) -> int:
    """Return how many neighbours along an axis of `length` weights share one of `count` scales.

    `usual` is what the config says. Then the last scale may be for fewer weights. Some layers have another size.

    Raises:
        ValueError: `count` fits neither.
    """
    if -(-length // usual) == count:
        return usual
    if length % count:
        raise ValueError(f"{count} scales fit no {length} weights, of which {usual} share one by the config")
    return length // count


def _scaled(weights: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Return (weights - zeros) * scales for weights [outputs, inputs]; zeros and scales are [groups, outputs]."""
    zeros, scales = zeros.T.contiguous(), scales.float().T.contiguous()
    return weights.float().sub_(zeros.index_select(1, groups)).mul_(scales.index_select(1, groups))
