"""Joins the outputs of the rows of a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# As in a response of `llm`; other numbers are padded with 0, and texts with the empty one.
_FILLERS = {"token_ids": -1}


def joined(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each output of any row as one array, with the rows as its first dimension.

    Rows may have different numbers of tokens or of samples, and ask for different outputs. What a row lacks is padded.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _padded(name, [row.get(name) for row in rows]) for name in names}


def _padded(name: str, arrays: Sequence[Any]) -> Any:
    given = [array for array in arrays if array is not None]
    dtype = given[0].dtype
    shape = np.max([array.shape for array in given], axis=0)
    filler = b"" if dtype == np.object_ else _FILLERS.get(name, 0)
    padded = np.full((len(arrays), *shape), filler, dtype=dtype)
    for row, array in zip(padded, arrays, strict=True):
        if array is not None:
            row[tuple(map(slice, array.shape))] = array
    return padded
