"""Input tensors of `llm` for tritonclient."""

from typing import Any

import numpy as np
import tritonclient.grpc.aio as aio
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from serving.fields import FIELDS, SAMPLING_PARAMETERS

INPUTS = {tensor["name"]: tensor for field in (SAMPLING_PARAMETERS, *FIELDS) for tensor in field.inputs()}
"""The inputs of `llm` by name."""


def dtype(name: str) -> Any:
    """Return the numpy dtype of an input."""
    kind = INPUTS[name]["data_type"].removeprefix("TYPE_")
    return triton_to_np_dtype({"STRING": "BYTES"}.get(kind, kind))


def tensors(fields: dict[str, Any], *, batched: bool = False, kind: Any = aio.InferInput) -> list[Any]:
    """Make input tensors from fields. `kind` is a tritonclient's class of input tensors.

    Text can be given as bytes. An array is sent unchanged, even if it does not match the input's type and shape.
    """
    inputs = []
    for name, value in fields.items():
        array = value if isinstance(value, np.ndarray) else _array(name, value, batched=batched)
        inputs.append(kind(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def _array(name: str, value: Any, *, batched: bool) -> Any:
    values = value if isinstance(value, list) else [value]
    values = [v.encode() if isinstance(v, str) else v for v in values]
    return np.array([values] if batched else values, dtype=dtype(name))
