"""Lets transformers load formats for which it needs other packages, most of them for GPUs."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from inflight.model.loading.quantized_checkpoint.formats import (
    Tensors,
    from_awq,
    from_bitsandbytes,
    from_fp8,
    from_gptq,
    from_modelopt,
)

METHOD = "inflight"
"""The name under which transformers finds this quantizer."""

FORMATS: dict[str, Callable[[Tensors, Mapping[str, Any]], torch.Tensor]] = {
    "gptq": from_gptq,
    "awq": from_awq,
    "bitsandbytes": from_bitsandbytes,
    "fp8": from_fp8,
    "modelopt": from_modelopt,
}
"""By the value of `quant_method` in a model's config."""

_WEIGHT = "weight"
_PACKED = ("qweight", "qzeros", "scales", "g_idx")
_OF_BITSANDBYTES = (
    "SCB",
    "weight_format",
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
)
_OF_FP8 = ("weight_scale_inv", "activation_scale", "qscale_weight")
_OF_MODELOPT = ("weight_scale", "weight_scale_2", "input_scale")
_OF_EXPERTS = ("gate_up_proj", "up_proj", "down_proj")
"""Weights of all experts of a layer in one tensor. Only FP8 is stored like that."""
_NAMES = {
    # The first name that fits is taken, and layers of any kind have a weight.
    _WEIGHT: [_WEIGHT, *_PACKED, *_OF_BITSANDBYTES, *_OF_FP8, *_OF_MODELOPT],
    **{name: [name, f"{name}_scale_inv"] for name in _OF_EXPERTS},
}


@register_quantization_config(METHOD)
class DequantizedConfig(QuantizationConfigMixin):
    """A model's `quantization_config`, as it is in its config.json."""

    quant_method = METHOD  # type: ignore[assignment]
    # transformers then takes the model for an ordinary one, once it is loaded.
    dequantize = True

    def __init__(self, original: Mapping[str, Any], **_: Any) -> None:
        self.original = original


@register_quantizer(METHOD)
class Dequantizer(HfQuantizer):
    """Turns the quantized tensors of each layer into its weight while they are loaded."""

    quantization_config: DequantizedConfig
    serialized_names = _NAMES

    def get_load_operations(self) -> dict[str, type[ConversionOps]]:
        """See `HfQuantizer`."""
        return {"dequantize": Dequantize}

    def is_serializable(self) -> bool:
        """See `HfQuantizer`."""
        return False

    @property
    def is_trainable(self) -> bool:
        """See `HfQuantizer`."""
        return False


class Dequantize(ConversionOps):
    """One step of transformers' conversion of weights."""

    def __init__(self, hf_quantizer: "Dequantizer") -> None:
        # transformers recognises by this attribute that it must not cast what it reads.
        self.hf_quantizer = hf_quantizer

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, list[torch.Tensor]]:
        """Return the weights by their names. `input_dict` has a tensor of each expert, or of one layer, by name.

        Names of one layer have no path, such as "scales", and those of experts have one, such as
        "mlp.experts.*.up_proj.scales", or "mlp.experts.gate_up_proj" for all of them in one tensor.
        """
        model: PreTrainedModel = kwargs["model"]
        name: str = kwargs["full_layer_name"]
        dtype = model.get_parameter(name).dtype
        is_transposed = isinstance(model.get_submodule(name.rpartition(".")[0]), Conv1D)
        layers: dict[str, dict[str, Sequence[torch.Tensor]]] = defaultdict(dict)
        for key, value in input_dict.items():
            weight, part = _split(key)
            layers[weight][part] = [value] if isinstance(value, torch.Tensor) else value
        return {
            name if weight in _NAMES else weight: [
                self._weight(one, is_transposed=is_transposed).to(dtype) for one in _one_by_one(tensors)
            ]
            for weight, tensors in layers.items()
        }

    def _weight(self, tensors: Tensors, *, is_transposed: bool) -> torch.Tensor:
        if tensors.keys() <= {_WEIGHT, "weight_format"}:
            weight = tensors[_WEIGHT]
            if weight.element_size() == 1:
                raise ValueError(f"a layer has weights in {weight.dtype}, and none of the scales that its format has")
            return weight  # Of a layer that is not quantized.
        original = self.hf_quantizer.quantization_config.original
        weight = FORMATS[original["quant_method"]](tensors, original)
        # GPT-2's layers keep weights as [inputs, outputs], but quantized ones are stored as those of any linear layer.
        return weight.T.contiguous() if is_transposed else weight


def _split(key: str) -> tuple[str, str]:
    """Return the name of the weight that a tensor belongs to, and what the tensor is called for a layer's `weight`."""
    names = ((weight, name) for weight, all_names in _NAMES.items() for name in all_names if key.endswith(name))
    weight, name = max(names, key=lambda pair: len(pair[1]))
    part = _WEIGHT + name.removeprefix(weight) if name.startswith(weight) else name
    return key.removesuffix(name) + weight, part


def _one_by_one(tensors: Mapping[str, Sequence[torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    count = len(next(iter(tensors.values())))
    return [{name: of_all[index] for name, of_all in tensors.items()} for index in range(count)]
