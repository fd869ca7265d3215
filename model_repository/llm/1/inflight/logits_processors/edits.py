"""Sparse changes to the logits of a step, gathered over all rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

# A penalty over this, or below its inverse, could move logits out of the range of float32.
_MAX_PENALTY = 1e9
_NO_BIASES = np.empty(0, dtype=np.float32)


class Edit(NamedTuple):
    """One change to the logits `x` of N different tokens of a row.

    With biases, `x` becomes `x + bias`. Without, it becomes `x / penalty` if it is positive, else `x * penalty`.
    """

    row: int
    tokens: Ints
    """[N]. The processor may change this array after the step."""
    penalty: float
    biases: Floats
    """[N], or empty."""


@dataclass(slots=True)
class LogitEdits:
    """Collects the changes of one row of logits after another. Those of a row apply in this order."""

    edits: list[Edit] = field(default_factory=list)
    _row: int = -1

    def begin_row(self, row: int) -> None:
        """Start the changes of a row of logits. The next calls belong to this row. Rows must come in their order."""
        self._row = row

    def add(self, tokens: Sequence[int] | Ints, biases: float | Floats) -> None:
        """Add biases to the logits of different tokens: one bias for all tokens, or one for each."""
        if len(tokens):
            each = biases if isinstance(biases, np.ndarray) else np.full(len(tokens), biases, dtype=np.float32)
            self.edits.append(Edit(self._row, np.asarray(tokens, dtype=np.int64), 1.0, each))

    def forbid(self, tokens: Sequence[int] | Ints) -> None:
        """Make tokens impossible: add minus infinity to their logits."""
        self.add(tokens, -np.inf)

    def penalise(self, tokens: Sequence[int] | Ints, penalty: float) -> None:
        """Make different tokens less likely: divide positive logits, multiply negative ones (CTRL, 2019)."""
        if len(tokens):
            bounded = min(max(penalty, 1 / _MAX_PENALTY), _MAX_PENALTY)
            self.edits.append(Edit(self._row, np.asarray(tokens, dtype=np.int64), bounded, _NO_BIASES))
