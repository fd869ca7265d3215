"""Reads experts of compressed-tensors, also where transformers does not: with zero points, and not quantized."""

from collections import defaultdict
from typing import Any

import torch
from transformers.core_model_loading import ConversionOps
from transformers.integrations.compressed_tensors import CompressedTensorsDequantize, get_experts_scheme
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer

METHOD = "compressed-tensors"

_WEIGHT = "weight"
_PARTS = CompressedTensorsHfQuantizer.serialized_names[_WEIGHT]


class Dequantize(CompressedTensorsDequantize):
    """transformers' step of the conversion of weights, with a step of our own for experts."""

    def convert(self, input_dict: dict[str, Any], *arguments: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the weights by their names. `input_dict` has the tensors of a layer by name, or, by names with a path,
        those of each expert."""
        if not input_dict.keys().isdisjoint(_PARTS):
            return super().convert(input_dict, *arguments, **kwargs)
        experts: dict[str, dict[str, list[torch.Tensor]]] = defaultdict(dict)
        for key, tensors in input_dict.items():
            part = next(part for part in _PARTS if key.endswith(f".{part}"))
            experts[key.removesuffix(part) + _WEIGHT][part] = tensors
        dtype = kwargs["model"].get_parameter(kwargs["full_layer_name"]).dtype
        return {
            weight: [
                self._weight(dict(zip(parts, of_one, strict=True))).to(dtype)
                for of_one in zip(*parts.values(), strict=True)
            ]
            for weight, parts in experts.items()
        }

    def _weight(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """`tensors` are those of one expert."""
        if tensors.keys() == {_WEIGHT}:
            return tensors[_WEIGHT]
        # It is not installed everywhere.
        from compressed_tensors.compressors import BaseCompressor  # type: ignore[import-untyped]

        config = self.hf_quantizer.compressor.quantization_config
        scheme = self.scheme or get_experts_scheme(config)  # type: ignore[no-untyped-call]
        compressor = BaseCompressor.get_value_from_registry(scheme.format or config.format)
        weight: torch.Tensor = compressor.decompress(tensors, scheme)[_WEIGHT]
        return weight


class Quantizer(CompressedTensorsHfQuantizer):
    """transformers' quantizer with the step above."""

    def get_load_operations(self) -> dict[str, type[ConversionOps]]:
        """See `HfQuantizer`."""
        return {"dequantize": Dequantize}


def register() -> None:
    """Let transformers find this quantizer instead of its own."""
    AUTO_QUANTIZER_MAPPING[METHOD] = Quantizer
