"""Embeddings that take the place of tokens of a prompt."""

from dataclasses import dataclass
from typing import Any

_INPUTS = {"f": ("prompt_embeds", "FP32"), "e": ("prompt_embedding_table", "FP16")}
"""The model's input by the code of the type of the numbers, and Triton's name of this type."""


@dataclass(frozen=True, slots=True)
class Embeds:
    """Rows of numbers, as the model takes them."""

    input_name: str
    data_type: str
    shape: tuple[int, int]
    content: bytes

    @classmethod
    def of(cls, given: Any) -> "Embeds":
        """Copy an array [rows, width] of float32 or float16.

        Args:
            given: an object with the buffer protocol, such as a numpy array.

        Raises:
            TypeError: it is something else.
        """
        with memoryview(given) as view:
            kind = view.format.lstrip("<=@")
            if view.ndim != 2 or kind not in _INPUTS:
                raise TypeError(
                    f"prompt_embeds has {view.ndim} dimensions of the type {view.format!r}; it must be an array "
                    "[rows, width] of float32 or float16"
                )
            assert view.shape is not None
            return cls(*_INPUTS[kind], (view.shape[0], view.shape[1]), view.tobytes())
