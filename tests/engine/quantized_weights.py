"""Weights in the formats of quantized checkpoints, packed number by number from the descriptions of the formats."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

GROUP = 32
# The codes of NF4 and their values, from the paper of QLoRA.
_NF4 = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0]
_NF4 += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]

# The numbers of FP4, by their codes: the highest of four bits is the sign.
_E2M1 = torch.tensor([sign * value for sign in (1, -1) for value in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)])

Packed = tuple[dict[str, torch.Tensor], torch.Tensor]
"""The tensors of a layer by their names in the checkpoint, and the weight [outputs, inputs] that they stand for."""


@dataclass(frozen=True)
class Format:
    """How a checkpoint stores the weights of linear layers."""

    config: dict[str, Any]
    """Of the model, as `quantization_config`."""
    pack: Callable[[torch.Tensor], Packed]
    """Packs weights [outputs, inputs] in float32."""


def _words(rows: Sequence[Sequence[int]], bits: int) -> torch.Tensor:
    """Pack the numbers of each row into int32, those that come first in the lowest bits."""
    count = 32 // bits
    packed = [
        [sum(number << bits * i for i, number in enumerate(row[at : at + count])) for at in range(0, len(row), count)]
        for row in rows
    ]
    return torch.tensor(packed, dtype=torch.int64).to(torch.int32)


def _codes(weight: torch.Tensor, groups: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes [outputs, inputs], zero points and float16 scales [groups, outputs] of asymmetric rounding."""
    largest = 2**bits - 1
    parts = [weight[:, groups == group] for group in range(int(groups.max()) + 1)]
    low = torch.stack([part.amin(dim=1).clamp(max=0) for part in parts])
    high = torch.stack([part.amax(dim=1).clamp(min=0) for part in parts])
    scales = ((high - low) / largest).half()
    zeros = (-low / scales.float()).round().clamp(0, largest).int()
    codes = (weight / scales.float().T[:, groups] + zeros.T[:, groups]).round().clamp(0, largest).int()
    return codes, zeros, scales


def _values(codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    return (codes - zeros.T[:, groups]).float() * scales.float().T[:, groups]


def gptq(bits: int, *, version: int = 1, in_order: bool = True) -> Format:
    """With `in_order` false, the inputs of a group are spread over all, as `desc_act` does it."""

    def pack(weight: torch.Tensor) -> Packed:
        groups = torch.arange(weight.shape[1]) // GROUP
        if not in_order:
            groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(0))]
        # Outputs without a negative weight have zero points of 0.
        weight = torch.where((torch.arange(len(weight)) % 3 == 1)[:, None], weight.abs(), weight)
        codes, zeros, scales = _codes(weight, groups, bits)
        words = _words(zeros.tolist(), bits)
        # GPTQModel takes one from all zero points in a word at once.
        ones = _words([[1] * (32 // bits)], bits)
        tensors = {
            "qweight": _words(codes.tolist(), bits).T.contiguous(),
            "qzeros": words - ones if version == 1 else words,
            "scales": scales,
            "g_idx": groups.int(),
        }
        return tensors, _values(codes, zeros, scales, groups)

    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": False, "desc_act": not in_order}
    return Format({**config, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}, pack)


def awq() -> Format:
    def pack(weight: torch.Tensor) -> Packed:
        groups = torch.arange(weight.shape[1]) // GROUP
        codes, zeros, scales = _codes(weight, groups, 4)

        def words(rows: torch.Tensor) -> torch.Tensor:
            # From the lowest bits to the highest, a word has these of eight columns.
            order = [0, 2, 4, 6, 1, 3, 5, 7]
            return _words([[row[at + i] for at in range(0, len(row), 8) for i in order] for row in rows.tolist()], 4)

        tensors = {"qweight": words(codes.T), "qzeros": words(zeros), "scales": scales}
        return tensors, _values(codes, zeros, scales, groups)

    return Format({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, pack)


def fp8(block: int = GROUP, *, exponents: bool = False) -> Format:
    """`block` times `block` weights share a scale, as in DeepSeek's and Qwen's checkpoints (there 128 times 128).

    With `exponents`, scales are powers of two. The file has the exponents, in bytes.
    """

    def pack(weight: torch.Tensor) -> Packed:
        rows, columns = weight.shape
        whole = torch.nn.functional.pad(weight, (0, -columns % block, 0, -rows % block))
        blocks = whole.unflatten(0, (-1, block)).unflatten(2, (-1, block))
        scales = blocks.abs().amax(dim=(1, 3)) / 448
        stored = scales
        if exponents:
            powers = scales.log2().ceil()
            scales, stored = powers.exp2(), (powers + 127).to(torch.uint8)
        eighths = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        values = (eighths.float() * scales[:, None, :, None]).reshape(whole.shape)[:rows, :columns].contiguous()
        codes = eighths.reshape(whole.shape)[:rows, :columns].contiguous()
        return {"weight": codes, "weight_scale_inv": stored}, values

    return Format({"quant_method": "fp8", "weight_block_size": [block, block], "activation_scheme": "dynamic"}, pack)


def fp8_with_one_scale() -> Format:
    def pack(weight: torch.Tensor) -> Packed:
        scale = weight.abs().amax() / 448
        eighths = (weight / scale).to(torch.float8_e4m3fn)
        tensors = {"weight": eighths, "weight_scale_inv": scale, "activation_scale": torch.tensor(0.5)}
        return tensors, eighths.float() * scale

    return Format({"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}, pack)


def auto_fp8() -> Format:
    """The same, with the names of AutoFP8."""
    form = fp8_with_one_scale()

    def pack(weight: torch.Tensor) -> Packed:
        tensors, values = form.pack(weight)
        scales = {"weight_scale": tensors["weight_scale_inv"], "input_scale": tensors["activation_scale"]}
        return {"weight": tensors["weight"], **scales}, values

    return Format({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, pack)


def compressed_int4() -> Format:
    """Symmetric int4 in groups, "pack-quantized". Codes from -8 to 7 are stored with 8 added."""

    def pack(weight: torch.Tensor) -> Packed:
        blocks = weight.unflatten(1, (-1, GROUP))
        scales = (blocks.abs().amax(dim=2) / 7.5).bfloat16()
        codes = (blocks / scales.float()[:, :, None]).round().clamp(-8, 7).int()
        tensors = {
            "weight_packed": _words((codes + 8).flatten(1).tolist(), 4),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        # The package computes weights in the type of the scales.
        return tensors, (codes * scales[:, :, None]).flatten(1).float()

    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    return Format(config, pack)


def compressed_asymmetric_int4() -> Format:
    """As above, with a zero point for each group. Those of eight outputs are in one word."""

    def pack(weight: torch.Tensor) -> Packed:
        codes, zeros, scales = _codes(weight, torch.arange(weight.shape[1]) // GROUP, 4)
        scales = scales.T.bfloat16()
        tensors = {
            "weight_packed": _words(codes.tolist(), 4),
            "weight_zero_point": _words(zeros.tolist(), 4).T.contiguous(),
            "weight_scale": scales.contiguous(),
            "weight_shape": torch.tensor(weight.shape),
        }
        above = (codes.unflatten(1, (-1, GROUP)) - zeros.T[:, :, None]).to(scales.dtype)
        return tensors, (above * scales[:, :, None]).flatten(1).float()

    config = compressed_int4().config
    config["config_groups"]["group_0"]["weights"]["symmetric"] = False
    return Format(config, pack)


def compressed_int8() -> Format:
    """Int8 with a scale for each output, "int-quantized"."""

    def pack(weight: torch.Tensor) -> Packed:
        scales = (weight.abs().amax(dim=1, keepdim=True) / 127).bfloat16()
        codes = (weight / scales.float()).round().clamp(-128, 127).to(torch.int8)
        return {"weight": codes, "weight_scale": scales}, (codes.to(scales.dtype) * scales).float()

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    config = {**compressed_int4().config, "format": "int-quantized"}
    return Format({**config, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}, pack)


def compressed_fp8() -> Format:
    """FP8 with a scale for each output, "float-quantized"."""

    def pack(weight: torch.Tensor) -> Packed:
        scales = (weight.abs().amax(dim=1, keepdim=True) / 448).bfloat16()
        eighths = (weight / scales.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
        return {"weight": eighths, "weight_scale": scales}, (eighths.to(scales.dtype) * scales).float()

    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    activations = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
    config = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}},
        "ignore": ["lm_head"],
    }
    return Format(config, pack)


def nf4(*, nested: bool) -> Format:
    """With `nested`, the scales of blocks are quantized, too: in QLoRA's words, double quantization."""

    def pack(weight: torch.Tensor) -> Packed:
        values = torch.tensor(_NF4)
        count = weight.numel()
        blocks = torch.nn.functional.pad(weight.flatten(), (0, -count % 64)).view(-1, 64)
        largest = blocks.abs().amax(dim=1)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
        tensors = {"weight.quant_map": values, "weight.absmax": largest}
        if nested:
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(largest.mean())}
            steps = torch.linspace(-1, 1, 256)
            rest = largest - state["nested_offset"]
            of_blocks = torch.stack([part.abs().amax() for part in rest.split(256)])
            spread = of_blocks.repeat_interleave(256)[: len(rest)]
            codes = (rest / spread)[:, None].sub(steps).abs().argmin(dim=1)
            largest = steps[codes] * spread + state["nested_offset"]
            tensors["weight.absmax"] = codes.to(torch.uint8)
            tensors |= {"weight.nested_absmax": of_blocks, "weight.nested_quant_map": steps}
        codes = (blocks / largest[:, None]).flatten()[:, None].sub(values).abs().argmin(dim=1)
        pairs = codes[: count + count % 2].view(-1, 2)
        tensors["weight"] = (pairs[:, :1] * 16 + pairs[:, 1:]).to(torch.uint8)
        tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
            list(json.dumps(state).encode()), dtype=torch.uint8
        )
        return tensors, (values[codes] * largest.repeat_interleave(64))[:count].view(weight.shape)

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return Format({**config, "bnb_4bit_use_double_quant": nested}, pack)


def bitsandbytes_int8() -> Format:
    def pack(weight: torch.Tensor) -> Packed:
        largest = weight.abs().amax(dim=1)
        codes = (weight * 127 / largest[:, None]).round().to(torch.int8)
        tensors = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return tensors, codes * (largest[:, None] / 127)

    return Format({"quant_method": "bitsandbytes", "load_in_8bit": True}, pack)


def modelopt_fp8() -> Format:
    def pack(weight: torch.Tensor) -> Packed:
        scale = weight.abs().amax() / 448
        eighths = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": eighths, "weight_scale": scale, "input_scale": torch.tensor(0.5)}, eighths.float() * scale

    return Format({"quant_method": "modelopt", "quant_algo": "FP8"}, pack)


def nvfp4() -> Format:
    def pack(weight: torch.Tensor) -> Packed:
        parts = weight.unflatten(1, (-1, 16))
        of_all = weight.abs().amax() / (6 * 448)
        scales = (parts.abs().amax(dim=2) / 6 / of_all).to(torch.float8_e4m3fn)
        steps = scales.float() * of_all
        codes = (parts / steps[:, :, None])[..., None].sub(_E2M1).abs().argmin(dim=-1)
        low, high = codes.flatten(1)[:, ::2], codes.flatten(1)[:, 1::2]
        tensors = {"weight": (low + 16 * high).to(torch.uint8), "weight_scale": scales, "weight_scale_2": of_all}
        return tensors, (_E2M1[codes] * steps[:, :, None]).flatten(1)

    return Format({"quant_method": "modelopt", "quant_algo": "NVFP4"}, pack)


def mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pack weights [experts, outputs, inputs] as gpt-oss does.

    Return blocks [experts, outputs, inputs / 32, 16], scales [experts, outputs, inputs / 32], and what they stand for.
    """
    parts = weight.unflatten(2, (-1, GROUP))
    exponents = (parts.abs().amax(dim=3) / 6).log2().ceil()
    codes = (parts / exponents.exp2()[..., None])[..., None].sub(_E2M1).abs().argmin(dim=-1)
    blocks = codes[..., ::2] + 16 * codes[..., 1::2]  # The first of two is in the low bits.
    meant = (_E2M1[codes] * exponents.exp2()[..., None]).flatten(2)
    return blocks.to(torch.uint8), (exponents + 127).to(torch.uint8), meant
