"""Decides how a checkpoint with quantized weights is loaded."""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedConfig

from inflight.config import EngineConfig
from inflight.errors import UnsupportedModel
from inflight.model.loading.config_errors import one_line
from inflight.model.loading.quantized_checkpoint import compressed_experts
from inflight.model.loading.quantized_checkpoint.formats import BITS_OF_GPTQ
from inflight.model.loading.quantized_checkpoint.quantizer import FORMATS, METHOD

logger = logging.getLogger(__name__)

_BY_TRANSFORMERS = (compressed_experts.METHOD, "mxfp4")
"""Formats that transformers itself dequantizes if it is told to."""

_AUTO_ROUND = "auto-round"
_GPTQ = {"quant_method": "gptq", "checkpoint_format": "gptq"}
_GPTQ_2 = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
_AWQ = {"quant_method": "awq", "checkpoint_format": "gemm"}
_OF_AUTO_ROUND = {
    "auto": _GPTQ,
    "auto_round:gptq": _GPTQ,
    "auto_round:auto_gptq": _GPTQ,
    "auto_round": _GPTQ_2,
    "auto_round:gptqmodel": _GPTQ_2,
    "auto_round:awq": _AWQ,
    "auto_round:auto_awq": _AWQ,
}
"""What AutoRound's `packing_format` stands for."""

_OF_LAYERS = ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure")
"""What a group of compressed-tensors says about how its weights are stored."""

_OF_MODELOPT = "hf_quant_config.json"
"""A file in which NVIDIA's Model Optimizer describes weights; only later versions do so in config.json, too."""
_ALGORITHMS_OF_MODELOPT = ("FP8", "NVFP4")


def prepare(config: EngineConfig, hf_config: PreTrainedConfig) -> bool:
    """Change a model's config so that transformers loads quantized weights as ordinary ones.

    Returns whether the weights are quantized.

    Raises:
        UnsupportedModel: They are in a format that cannot be dequantized.
        ValueError: The file that describes them is damaged.
    """
    original = getattr(hf_config, "quantization_config", None) or _described_by_modelopt(config)
    if original is None:
        return False
    original = {**original, **_equivalent(original)}
    method = original.get("quant_method")
    if problem := _problem(original):
        raise UnsupportedModel(f"its weights are quantized with {method}, and its quantization_config has {problem}")
    if method == compressed_experts.METHOD:
        compressed_experts.register()
    if method in FORMATS:
        hf_config.quantization_config = {"quant_method": METHOD, "original": original}
    else:
        hf_config.quantization_config = {**original, "dequantize": True}
    logger.info("the weights are quantized with %s; they become numbers of the model's dtype", method)
    return True


def check_experts(files: Iterable[Path]) -> None:
    """Refuse experts in one quantized tensor that transformers has loaded as they are, without their scales.

    Of compressed-tensors, it dequantizes linear layers alone. The scales of the format `fp8` have another name.

    Raises:
        UnsupportedModel: There are such experts. The message has the name of the tensor.
    """
    tensors: dict[str, tuple[str, int]] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
            tensors |= {name: (part.get_dtype(), len(part.get_shape())) for name, part in parts.items()}
    for name, (dtype, dimensions) in tensors.items():
        if dimensions > 2 and dtype.startswith(("F8", "I8")) and f"{name}_scale" in tensors:
            raise UnsupportedModel(
                f"its weights have {name}, which are all experts of a layer in {dtype}; experts in one tensor must be "
                "in the format fp8, or not quantized"
            )


def _described_by_modelopt(config: EngineConfig) -> dict[str, Any] | None:
    path = Path(config.model) / _OF_MODELOPT
    if not path.is_file():
        return None
    try:
        return {"quant_method": "modelopt", **json.loads(path.read_text(encoding="utf-8"))["quantization"]}
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ValueError(
            f"model is {config.model!r}; its {_OF_MODELOPT} must be a JSON object with the object quantization: "
            f"{one_line(error)}"
        ) from error


def _equivalent(original: Mapping[str, Any]) -> Mapping[str, Any]:
    """What to change in a config, so that it has one of the names of `FORMATS`."""
    method = original.get("quant_method")
    if method == _AUTO_ROUND:
        return _OF_AUTO_ROUND.get(original.get("packing_format", "auto"), {})
    if method is None and (original.get("load_in_4bit") or original.get("load_in_8bit")):
        return {"quant_method": "bitsandbytes"}
    return {}


def _problem(original: Mapping[str, Any]) -> str | None:
    """Say what in the config cannot be served."""
    method = original.get("quant_method")
    if method not in (*_BY_TRANSFORMERS, *FORMATS):
        supported = ", ".join(sorted((*_BY_TRANSFORMERS, *FORMATS, _AUTO_ROUND)))
        packing = f" and packing_format {original.get('packing_format')!r}" if method == _AUTO_ROUND else ""
        return f"quant_method {method!r}{packing}; supported are {supported}"
    if method == "gptq" and (bits := original.get("bits")) not in BITS_OF_GPTQ:
        return f"bits {bits!r}; it must be one of {', '.join(map(str, BITS_OF_GPTQ))}"
    if method == "modelopt" and (algorithm := original.get("quant_algo")) not in _ALGORITHMS_OF_MODELOPT:
        return f"quant_algo {algorithm!r}; it must be {' or '.join(_ALGORITHMS_OF_MODELOPT)}"
    if method == compressed_experts.METHOD and (problem := _problem_of_groups(original)):
        return f"config_groups {problem}"
    layout = original.get("checkpoint_format") or original.get("format") or original.get("version")
    layouts = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}.get(method, ())
    if layouts and layout is not None and str(layout).lower() not in layouts:
        return f"the format {layout!r}; it must be {' or '.join(layouts)}"
    return None


def _problem_of_groups(original: Mapping[str, Any]) -> str | None:
    """Say what transformers would read wrong in the groups of layers of compressed-tensors.

    It reads all linear layers by one of the groups, and all experts by one. So it would take weights of 8 bits for
    those of 4 bits.
    """
    groups = original.get("config_groups")
    stored = [
        (group, weights)
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(weights := group.get("weights"), dict)
    ]
    if any(weights.get("actorder") == "group" for _, weights in stored):
        return "with actorder 'group', an order of inputs that the package compressed-tensors does not read"
    ways = {
        (_is_of_experts(group), group.get("format") or original.get("format"), *map(str, map(weights.get, _OF_LAYERS)))
        for group, weights in stored
    }
    if len(ways) > len({is_of_experts for is_of_experts, *_ in ways}):
        return "that store their weights in different ways; all linear layers must have the same one"
    return None


def _is_of_experts(group: Mapping[str, Any]) -> bool:
    """As transformers decides it."""
    return any(str(target).startswith("re:") and "experts" in target for target in group.get("targets", ()))
