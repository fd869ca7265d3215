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


class EditPass(NamedTuple):
    """Changes to N different logits: `x` becomes `(x / penalty if x > 0 else x * penalty) + bias`. Arrays are [N]."""

    rows: Ints
    tokens: Ints
    penalties: Floats
    biases: Floats


@dataclass(slots=True)
class _Edit:
    row: int
    tokens: Ints
    penalty: float | Floats
    bias: float | Floats


@dataclass(slots=True)
class LogitEdits:
    """Collects the changes of one row of logits after another.

    The i-th changes of all rows form pass i, so that a few operations apply all changes. The changes of a row apply in
    the order in which its processors made them, whatever the other rows change.
    """

    _passes: list[list[_Edit]] = field(default_factory=list)
    _row: int = -1
    _next: int = 0

    def begin_row(self, row: int) -> None:
        """Start the changes of a row of logits. The next calls belong to this row."""
        self._row, self._next = row, 0

    def add(self, tokens: Sequence[int] | Ints, biases: float | Floats) -> None:
        """Add biases to the logits of different tokens: one bias for all tokens, or one for each."""
        self._edit(tokens, 1.0, biases)

    def forbid(self, tokens: Sequence[int] | Ints) -> None:
        """Make tokens impossible: add minus infinity to their logits."""
        self._edit(tokens, 1.0, -np.inf)

    def penalise(self, tokens: Sequence[int] | Ints, penalty: float) -> None:
        """Make different tokens less likely: divide positive logits, multiply negative ones (CTRL, 2019)."""
        self._edit(tokens, min(max(penalty, 1 / _MAX_PENALTY), _MAX_PENALTY), 0.0)

    def _edit(self, tokens: Sequence[int] | Ints, penalty: float | Floats, bias: float | Floats) -> None:
        if len(tokens) == 0:
            return
        if self._next == len(self._passes):
            self._passes.append([])
        self._passes[self._next].append(_Edit(self._row, np.asarray(tokens, dtype=np.int64), penalty, bias))
        self._next += 1

    def gather(self) -> list[EditPass]:
        """Return the passes in the order in which to apply them. No logit occurs twice in one pass."""
        return [_gather(edits) for edits in self._passes]


def _gather(edits: Sequence[_Edit]) -> EditPass:
    counts = [len(edit.tokens) for edit in edits]

    def spread(values: Sequence[float | Floats]) -> Floats:
        return np.concatenate([np.broadcast_to(np.float32(v), n) for v, n in zip(values, counts, strict=True)])

    return EditPass(
        np.repeat([edit.row for edit in edits], counts),
        np.concatenate([edit.tokens for edit in edits]),
        spread([edit.penalty for edit in edits]),
        spread([edit.bias for edit in edits]),
    )
