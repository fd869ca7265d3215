"""Decides how a checkpoint with quantized weights is loaded."""

import logging
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from inflight.errors import UnsupportedModel
from inflight.model.loading.quantized_checkpoint.formats import BITS_OF_GPTQ
from inflight.model.loading.quantized_checkpoint.quantizer import FORMATS, METHOD

logger = logging.getLogger(__name__)

_BY_TRANSFORMERS = ("compressed-tensors", "fp8", "mxfp4")
"""Formats that transformers itself dequantizes if it is told to."""

_AUTO_ROUND = "auto-round"
_OF_AUTO_ROUND = {"gptq": "gptq", "auto_gptq": "gptq", "awq": "awq", "auto_awq": "awq"}
"""In which format AutoRound stores weights, by what follows the colon in `packing_format`."""


def prepare(hf_config: PreTrainedConfig) -> bool:
    """Change a model's config so that transformers loads quantized weights as ordinary ones.

    Returns whether the weights are quantized.

    Raises:
        UnsupportedModel: They are in a format that cannot be dequantized.
    """
    original = getattr(hf_config, "quantization_config", None)
    if original is None:
        return False
    original = dict(original)
    method = _method(original)
    if problem := _problem(method, original):
        raise UnsupportedModel(f"its weights are quantized with {method}, and its quantization_config has {problem}")
    if method in FORMATS:
        hf_config.quantization_config = {"quant_method": METHOD, "original": {**original, "quant_method": method}}
    else:
        hf_config.quantization_config = {**original, "dequantize": True}
    logger.info("the weights are quantized with %s; they become numbers of the model's dtype", method)
    return True


def _method(original: Mapping[str, Any]) -> str | None:
    method: str | None = original.get("quant_method")
    if method is None and (original.get("load_in_4bit") or original.get("load_in_8bit")):
        return "bitsandbytes"
    if method == _AUTO_ROUND:
        packing = str(original.get("packing_format", "gptq")).rpartition(":")[2]
        return _OF_AUTO_ROUND.get(packing, method)
    return method


def _problem(method: str | None, original: Mapping[str, Any]) -> str | None:
    """Say what in the config cannot be served."""
    if method not in (*_BY_TRANSFORMERS, *FORMATS):
        supported = ", ".join(sorted((*_BY_TRANSFORMERS, *FORMATS, _AUTO_ROUND)))
        return f"quant_method {original.get('quant_method')!r}; it must be one of {supported}"
    if method == "gptq" and (bits := original.get("bits")) not in BITS_OF_GPTQ:
        return f"bits {bits!r}; it must be one of {', '.join(map(str, BITS_OF_GPTQ))}"
    layout = original.get("checkpoint_format") or original.get("format") or original.get("version")
    layouts = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}.get(method, ())
    if layouts and layout is not None and str(layout).lower() not in layouts and method == original["quant_method"]:
        return f"the format {layout!r}; it must be {' or '.join(layouts)}"
    return None
