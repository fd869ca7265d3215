"""Lets each rank of a divided model take its part of weights that are dequantized while they are loaded.

transformers divides each tensor of a checkpoint when it reads it. Packed numbers and scales cannot be divided like the
weights that they stand for: their sizes are others, and a group of weights with one scale may lie on two ranks. So each
rank reads quantized tensors whole, dequantizes a weight as one process does, and then takes its part.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import core_model_loading
from transformers.core_model_loading import ConversionOps
from transformers.distributed.sharding_utils import DtensorShardOperation
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer

from inflight.model.parallel.shards import environment

# Otherwise threads of transformers read tensors ahead of the conversion, up to the whole checkpoint.
_READ_WHEN_NEEDED = {"HF_DEACTIVATE_ASYNC_LOAD": "1"}


class ReadWhole(DtensorShardOperation):
    """Reads this rank's part of an ordinary tensor, and the whole of one that is to be dequantized."""

    def shard_tensor(
        self, source: Any, tensor_idx: int | None = None, device: Any = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor | None:
        """See `DtensorShardOperation`."""
        if dtype is None:  # transformers leaves the dtype of what is dequantized to the quantizer.
            whole: torch.Tensor = source[...].to(device)
            return whole
        part: torch.Tensor | None = super().shard_tensor(source, tensor_idx, device, dtype)
        return part


class Divided(ConversionOps):
    """Dequantizes weights, one after the other, and leaves only this rank's part of each."""

    def __init__(self, dequantize: Any) -> None:
        """`dequantize` is the operation of a quantizer."""
        self._dequantize = dequantize
        # transformers recognises by this attribute that it must not cast what it reads.
        self.hf_quantizer: HfQuantizer = dequantize.hf_quantizer

    def convert(self, input_dict: dict[str, Any], *arguments: Any, **kwargs: Any) -> dict[str, Any]:
        """Return this rank's part of each weight by name. `input_dict` has the tensors of one weight, or of an expert
        each, by name."""
        name: str = kwargs["full_layer_name"]
        parameter = kwargs["model"].get_parameter(name)
        if not isinstance(parameter, DTensor):  # Each rank has all of it.
            return self._dequantize.convert(input_dict, *arguments, **kwargs)  # type: ignore[no-any-return]
        part_of = DtensorShardOperation(parameter).shard_tensor
        parts = defaultdict(list)
        for index in range(len(next(iter(input_dict.values())))):
            one = {key: [tensors[index]] for key, tensors in input_dict.items()}
            for key, found in self._dequantize.convert(one, *arguments, **kwargs).items():
                # Under other names than that of the parameter, there are experts: a list or a stack of one.
                weight = found if key == name and isinstance(found, torch.Tensor) else found[0]
                part = part_of(weight.detach(), tensor_idx=index)
                assert part is not None  # Each rank has a part of every expert.
                # A copy, as a view would keep the whole weight.
                parts[key].append(part.to(parameter.dtype, copy=True))
        return parts


@contextmanager
def dividing() -> Iterator[None]:
    """Let transformers divide quantized weights in this context."""
    quantizers: dict[str, Any] = dict(AUTO_QUANTIZER_MAPPING)
    AUTO_QUANTIZER_MAPPING.update({method: _that_divides(kind) for method, kind in quantizers.items()})
    core_model_loading.DtensorShardOperation = ReadWhole  # type: ignore[attr-defined]
    try:
        with environment(_READ_WHEN_NEEDED):
            yield
    finally:
        core_model_loading.DtensorShardOperation = DtensorShardOperation  # type: ignore[attr-defined]
        AUTO_QUANTIZER_MAPPING.update(quantizers)


def _that_divides(quantizer: type[HfQuantizer]) -> type[HfQuantizer]:
    class Dividing(quantizer):  # type: ignore[valid-type, misc]
        def get_load_operations(self) -> dict[str, Any]:
            dequantize = super().get_load_operations()["dequantize"]
            return {"dequantize": lambda quantizer: Divided(dequantize(quantizer))}

    return Dividing
